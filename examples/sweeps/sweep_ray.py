"""The same sweep with Ray Tune: all combinations, each a run in a folder of its own.

    python examples/sweeps/sweep_ray.py CONFIG.yaml --out runs model.theta=0,0.5,1 seed=0,1,2

A run that fails is tried once more. Started again, it goes on: finished runs are not repeated.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from sweep import name_of, runs_of, train_one, write_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("grid", nargs="+", metavar="key=value,value")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--at-once", type=int, default=2, help="runs in parallel")
    options = parser.parse_args()

    import ray
    from ray import tune

    config, out = str(options.config.resolve()), options.out.resolve()
    folder = str(Path.cwd())

    def trainable(chosen: dict[str, Any]) -> None:
        import os

        os.chdir(folder)  # Ray works in a folder of its own; paths in the configuration are relative to this one
        settings = chosen["settings"]
        metrics = train_one(config, str(out / name_of(settings)), settings)
        tune.report({key: value for key, value in metrics.items() if isinstance(value, float | int)})

    ray.init(num_cpus=options.at_once, include_dashboard=False, log_to_driver=False)
    tuner = tune.Tuner(
        trainable,
        param_space={"settings": tune.grid_search(runs_of(options.grid))},
        run_config=tune.RunConfig(
            name="ray", storage_path=str(out), failure_config=tune.FailureConfig(max_failures=1), verbose=0
        ),
    )
    results = tuner.fit()
    rows, failed = [], []
    for result in results:
        name = name_of(result.config["settings"]) if result.config else "unknown"
        if result.error is None and result.metrics is not None:
            rows.append({"run": name, "val_loss": result.metrics["val_loss"]})
        else:
            failed.append(f"failed: {name}: {str(result.error).strip().splitlines()[-1]}")
    write_table(out / "sweep.csv", rows)
    print(f"{len(rows)} runs finished; the table: {out / 'sweep.csv'}")
    print("\n".join(failed), file=sys.stderr)
    ray.shutdown()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
