"""The NumPy backend: it says what is right, and reads like the formulas."""

from depthgauge.backends.reference.graded import log_singular_values as log_singular_values
from depthgauge.backends.reference.graded import relative_singular_values as relative_singular_values
from depthgauge.backends.reference.jacobians import graded_accumulator as graded_accumulator
from depthgauge.backends.reference.jacobians import jacobian_accumulator as jacobian_accumulator
from depthgauge.backends.reference.jacobians import products as products
from depthgauge.backends.reference.jacobians import propagate as propagate
from depthgauge.backends.reference.philox import fill_normals as fill_normals
from depthgauge.backends.reference.propagation import forward as forward
from depthgauge.backends.reference.propagation import jvp as jvp
from depthgauge.backends.reference.propagation import states as states
from depthgauge.backends.reference.propagation import vjp as vjp
from depthgauge.backends.reference.singular import singular_values as singular_values
