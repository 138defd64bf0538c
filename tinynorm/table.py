"""The table of built-in operations: each a name, its two formulas and what it asks of its inputs."""

from . import checks
from .formulas import (
    activations,
    arithmetic,
    elementary,
    losses,
    norms,
    products,
    reductions,
    rms_variants,
    selection,
    shaping,
)
from .formulas import linear as linear_formulas
from .kernels import activations as activation_kernels
from .kernels import dense, elementwise, normal
from .kernels import losses as loss_kernels
from .kernels import norms as norm_kernels
from .kernels import softmax as softmax_kernels
from .kernels.cuda import losses as cuda_losses
from .kernels.cuda import norms as cuda_norms
from .op import Op

add = Op("add", arithmetic.add, arithmetic.add_backward, checks.broadcast, late=True, keeps=False)
subtract = Op("subtract", arithmetic.subtract, arithmetic.subtract_backward, checks.broadcast, late=True, keeps=False)
multiply = Op("multiply", arithmetic.multiply, arithmetic.multiply_backward, checks.broadcast, late=True)
divide = Op("divide", arithmetic.divide, arithmetic.divide_backward, checks.broadcast, late=True)
negative = Op("negative", arithmetic.negative, arithmetic.negative_backward, keeps=False)
power = Op("power", arithmetic.power, arithmetic.power_backward, checks.broadcast, late=True)

exp = Op("exp", elementary.exp, elementary.exp_backward)
expm1 = Op("expm1", elementary.expm1, elementary.expm1_backward)
log = Op("log", elementary.log, elementary.log_backward)
log1p = Op("log1p", elementary.log1p, elementary.log1p_backward)
sqrt = Op("sqrt", elementary.sqrt, elementary.sqrt_backward)
tanh = Op("tanh", elementary.tanh, elementary.tanh_backward, kernel=activation_kernels.tanh)
sin = Op("sin", elementary.sin, elementary.sin_backward)
cos = Op("cos", elementary.cos, elementary.cos_backward)
absolute = Op("abs", elementary.absolute, elementary.absolute_backward)
erf = Op("erf", elementary.erf, elementary.erf_backward, kernel=normal.erf)

maximum = Op("maximum", selection.maximum, selection.maximum_backward, checks.broadcast, late=True)
minimum = Op("minimum", selection.minimum, selection.minimum_backward, checks.broadcast, late=True)
where = Op("where", selection.where, selection.where_backward, checks.broadcast, late=True)
clip = Op("clip", selection.clip, selection.clip_backward, checks.broadcast_optional, late=True)

sum = Op("sum", reductions.sum, reductions.sum_backward, checks.reduction, keeps=False, kernel=elementwise.sum)
mean = Op("mean", reductions.mean, reductions.mean_backward, checks.nonempty_reduction, keeps=False)
max = Op("max", reductions.max, reductions.max_backward, checks.nonempty_reduction)
min = Op("min", reductions.min, reductions.min_backward, checks.nonempty_reduction)
prod = Op("prod", reductions.prod, reductions.prod_backward, checks.reduction)
var = Op("var", reductions.var, reductions.var_backward, checks.variance)
logsumexp = Op("logsumexp", reductions.logsumexp, reductions.logsumexp_backward, checks.nonempty_reduction)
cumsum = Op("cumsum", reductions.cumsum, reductions.cumsum_backward, checks.line_axis_or_all, keeps=False)

reshape = Op("reshape", shaping.reshape, shaping.reshape_backward, checks.reshape, widen=False, keeps=False)
transpose = Op("transpose", shaping.transpose, shaping.transpose_backward, checks.transpose, widen=False, keeps=False)
broadcast_to = Op(
    "broadcast_to", shaping.broadcast_to, shaping.broadcast_to_backward, checks.broadcast_to, widen=False, keeps=False
)
concatenate = Op(
    "concatenate", shaping.concatenate, shaping.concatenate_backward, checks.concatenate, widen=False, keeps=False
)
stack = Op("stack", shaping.stack, shaping.stack_backward, checks.stack, widen=False, keeps=False)
getitem = Op("getitem", shaping.getitem, shaping.getitem_backward, widen=False)
take = Op("take", shaping.getitem, shaping.getitem_backward, widen=False)
scatter = Op("scatter", shaping.scatter, shaping.scatter_backward)
astype = Op("astype", shaping.astype, shaping.astype_backward, widen=False, keeps=False)

matmul = Op("matmul", products.matmul, products.matmul_backward, checks.matmul)
einsum = Op("einsum", products.einsum, products.einsum_backward)
linear = Op("linear", linear_formulas.linear, linear_formulas.linear_backward, checks.linear, kernel=dense.linear)

rms_norm = Op(
    "rms_norm",
    norms.rms_norm,
    norms.rms_norm_backward,
    kernel=norm_kernels.rms_norm,
    cuda=cuda_norms.rms_norm,
    quiet=True,
)
rms_norm_variant = Op(
    "rms_norm_variant", rms_variants.rms_norm_variant, rms_variants.rms_norm_variant_backward, quiet=True
)
layer_norm = Op(
    "layer_norm",
    norms.layer_norm,
    norms.layer_norm_backward,
    kernel=norm_kernels.layer_norm,
    cuda=cuda_norms.layer_norm,
    quiet=True,
)

relu = Op("relu", activations.relu, activations.relu_backward, kernel=elementwise.relu)
leaky_relu = Op(
    "leaky_relu", activations.leaky_relu, activations.leaky_relu_backward, kernel=activation_kernels.leaky_relu
)
elu = Op("elu", activations.elu, activations.elu_backward, kernel=activation_kernels.elu)
sigmoid = Op("sigmoid", activations.sigmoid, activations.sigmoid_backward, kernel=activation_kernels.sigmoid)
silu = Op("silu", activations.silu, activations.silu_backward, kernel=activation_kernels.silu)
softplus = Op("softplus", activations.softplus, activations.softplus_backward, kernel=activation_kernels.softplus)
gelu = Op("gelu", activations.gelu, activations.gelu_backward, kernel=normal.gelu)
gelu_tanh = Op("gelu_tanh", activations.gelu_tanh, activations.gelu_tanh_backward, kernel=activation_kernels.gelu_tanh)
softmax = Op(
    "softmax", activations.softmax, activations.softmax_backward, checks.line_axis, kernel=softmax_kernels.softmax
)
log_softmax = Op(
    "log_softmax",
    activations.log_softmax,
    activations.log_softmax_backward,
    checks.line_axis,
    kernel=softmax_kernels.log_softmax,
)
dropout = Op("dropout", activations.dropout, activations.dropout_backward)

cross_entropy = Op(
    "cross_entropy",
    losses.cross_entropy,
    losses.cross_entropy_backward,
    kernel=loss_kernels.cross_entropy,
    cuda=cuda_losses.cross_entropy,
)
nll_loss = Op("nll_loss", losses.nll_loss, losses.nll_loss_backward)
mse_loss = Op("mse_loss", losses.mse_loss, losses.mse_loss_backward)
