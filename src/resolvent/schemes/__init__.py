"""Time integrators as small tables: theta, Runge-Kutta, multistep and partitioned schemes."""

from resolvent.schemes import tableaux as tableaux
from resolvent.schemes.guess import Guess as Guess
from resolvent.schemes.guess import explicit as explicit
from resolvent.schemes.guess import extrapolate as extrapolate
from resolvent.schemes.guess import previous as previous
from resolvent.schemes.interval import Interval as Interval
from resolvent.schemes.linear_form import LinearForm as LinearForm
from resolvent.schemes.multistep import ADAMS_MOULTON3 as ADAMS_MOULTON3
from resolvent.schemes.multistep import ADAMS_MOULTON4 as ADAMS_MOULTON4
from resolvent.schemes.multistep import BDF2 as BDF2
from resolvent.schemes.multistep import BDF3 as BDF3
from resolvent.schemes.multistep import Multistep as Multistep
from resolvent.schemes.partitioned import LEAPFROG as LEAPFROG
from resolvent.schemes.partitioned import REVNET as REVNET
from resolvent.schemes.partitioned import VERLET as VERLET
from resolvent.schemes.partitioned import PartitionedRungeKutta as PartitionedRungeKutta
from resolvent.schemes.partitioned import Symplectic as Symplectic
from resolvent.schemes.runge_kutta import RungeKutta as RungeKutta
from resolvent.schemes.scheme import Carry as Carry
from resolvent.schemes.scheme import Scheme as Scheme
from resolvent.schemes.scheme import Step as Step
from resolvent.schemes.tableau import AdditiveTableau as AdditiveTableau
from resolvent.schemes.tableau import Tableau as Tableau
from resolvent.schemes.theta import Theta as Theta
