"""The public names of the library, and an example of use for each.

Everything that can be called needs an example, by its kind or in the table of `examples_of_use`: a new public function
is tested, or the tests fail.
"""

import enum
import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass
from types import ModuleType
from typing import Any

import resolvent as rs
from examples_of_use import EXAMPLES, Example, block, solving, stepping
from resolvent import integrate, plotting, schemes
from resolvent.blocks import Memory, Strategy
from resolvent.extending import Adjoint, LinearSolver, Plan
from resolvent.schemes import tableaux

PUBLIC: dict[str, ModuleType] = {
    "": rs,
    **{name: getattr(rs, name) for name in rs.__all__ if isinstance(getattr(rs, name), ModuleType)},
    "schemes.tableaux": tableaux,
    "integrate": integrate,
    "plotting": plotting,
}


def public_names() -> Iterator[tuple[str, Any]]:
    """Every public name of the library with what it stands for; modules are entered, not named.

    A class or a function that several modules have is named by the first, which is the top for what is there.
    """
    seen: set[int] = set()
    for prefix, module in PUBLIC.items():
        names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
        for name in names:
            value = getattr(module, name)
            own = getattr(value, "__module__", "resolvent").startswith("resolvent")
            if isinstance(value, ModuleType) or not own or id(value) in seen:
                continue
            if inspect.isclass(value) or inspect.isfunction(value):
                seen.add(id(value))
            yield f"{prefix}.{name}".lstrip("."), value


def examples() -> dict[str, Example]:
    """An example for every public name that can be called or stands for an object of a known kind."""
    found: dict[str, Example] = {}
    missing = []
    for name, value in public_names():
        variants = {key: example for key, example in EXAMPLES.items() if key.partition(":")[0] == name}
        example = by_kind(value)
        if not variants and example is not None:
            variants[name] = example
        if not variants and not is_data(value):
            missing.append(name)
        found |= variants
    if missing:
        raise LookupError(f"add an example of {', '.join(missing)} to examples_of_use.py")
    return found


def by_kind(value: Any) -> Example | None:
    """The example that all objects of a kind have in common."""
    if isinstance(value, rs.schemes.Tableau):
        return stepping(schemes.RungeKutta(value))
    if isinstance(value, rs.schemes.Scheme):
        return stepping(value)
    if not inspect.isclass(value) or inspect.isabstract(value):
        return None
    if issubclass(value, Strategy):
        return Example(lambda: block(mode=value()))
    if issubclass(value, LinearSolver):
        return solving(solver=rs.NewtonKrylov(linear=value()))
    if issubclass(value, rs.Fallback):
        return solving(solver=value((rs.Picard(), rs.Newton())))
    if issubclass(value, Plan):
        return solving(solver=value())
    if issubclass(value, Adjoint):
        return solving(adjoint=value(), solver=rs.Picard())
    if issubclass(value, Memory):
        return Example(lambda: block(memory=value()))
    return None


def is_data(value: Any) -> bool:
    """Whether there is nothing to call: constants and aliases, errors, interfaces, and records of what came out."""
    if not inspect.isclass(value):
        return not callable(value)
    interface = inspect.isabstract(value) or getattr(value, "_is_protocol", False)
    if interface or issubclass(value, BaseException | enum.Enum):
        return True
    record = is_dataclass(value) or issubclass(value, tuple)
    return record and "__call__" not in vars(value)
