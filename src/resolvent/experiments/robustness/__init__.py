"""How robust a classifier is: against chance, against attacks, and for certain."""

from resolvent.experiments.robustness.budget import Budget as Budget
from resolvent.experiments.robustness.certificates import certified_accuracy as certified_accuracy
from resolvent.experiments.robustness.certificates import certified_radii as certified_radii
from resolvent.experiments.robustness.certificates import refuted as refuted
from resolvent.experiments.robustness.corruptions import CORRUPTIONS as CORRUPTIONS
from resolvent.experiments.robustness.ensemble import Effort as Effort
from resolvent.experiments.robustness.ensemble import Ensemble as Ensemble
from resolvent.experiments.robustness.ensemble import autoattack as autoattack
from resolvent.experiments.robustness.ensemble import square as square
from resolvent.experiments.robustness.gradient import adversarial_images as adversarial_images
from resolvent.experiments.robustness.gradient import fgsm as fgsm
from resolvent.experiments.robustness.gradient import pgd as pgd
from resolvent.experiments.robustness.noise import gaussian_noise as gaussian_noise
from resolvent.experiments.robustness.noise import noise_outcomes as noise_outcomes
from resolvent.experiments.robustness.outcome import Outcome as Outcome
from resolvent.experiments.robustness.outcome import judge as judge
from resolvent.experiments.robustness.outcome import worst_case as worst_case
from resolvent.experiments.robustness.sizes import FULL as FULL
from resolvent.experiments.robustness.sizes import QUICK as QUICK
from resolvent.experiments.robustness.sizes import THOROUGH as THOROUGH
from resolvent.experiments.robustness.sizes import Size as Size
from resolvent.experiments.robustness.solving import attackable as attackable
from resolvent.experiments.robustness.suite import evaluate as evaluate
from resolvent.experiments.robustness.surrogates import masked as masked
from resolvent.experiments.robustness.surrogates import transfer as transfer
