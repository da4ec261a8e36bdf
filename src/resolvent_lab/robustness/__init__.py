"""How robust a classifier is: against chance, against attacks, and for certain."""

from resolvent_lab.robustness.budget import Budget as Budget
from resolvent_lab.robustness.certificates import certified_accuracy as certified_accuracy
from resolvent_lab.robustness.certificates import certified_radii as certified_radii
from resolvent_lab.robustness.certificates import refuted as refuted
from resolvent_lab.robustness.corruptions import CORRUPTIONS as CORRUPTIONS
from resolvent_lab.robustness.ensemble import Effort as Effort
from resolvent_lab.robustness.ensemble import Ensemble as Ensemble
from resolvent_lab.robustness.ensemble import autoattack as autoattack
from resolvent_lab.robustness.ensemble import square as square
from resolvent_lab.robustness.gradient import adversarial_images as adversarial_images
from resolvent_lab.robustness.gradient import fgsm as fgsm
from resolvent_lab.robustness.gradient import pgd as pgd
from resolvent_lab.robustness.gradient import transfer as transfer
from resolvent_lab.robustness.noise import gaussian_noise as gaussian_noise
from resolvent_lab.robustness.noise import noise_outcomes as noise_outcomes
from resolvent_lab.robustness.outcome import Outcome as Outcome
from resolvent_lab.robustness.outcome import judge as judge
from resolvent_lab.robustness.outcome import masked as masked
from resolvent_lab.robustness.outcome import worst_case as worst_case
from resolvent_lab.robustness.sizes import FULL as FULL
from resolvent_lab.robustness.sizes import QUICK as QUICK
from resolvent_lab.robustness.sizes import THOROUGH as THOROUGH
from resolvent_lab.robustness.sizes import Size as Size
from resolvent_lab.robustness.solving import attackable as attackable
from resolvent_lab.robustness.suite import evaluate as evaluate
