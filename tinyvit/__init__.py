"""tinyvit: a Vision Transformer and a ResNet from `+` to CIFAR-10, in NumPy.

>>> import tinyvit as tv
>>> x = tv.tensor([1.0, 2.0, 3.0], requires_grad=True)
>>> (x * x).sum().backward()
>>> x.grad
array([2., 4., 6.], dtype=float32)
"""

from . import threads  # noqa: F401, I001  (before NumPy is loaded)
from . import models, nn, ops, optim  # noqa: F401  (ops fills the table of functions)
from .autograd import AnomalyError, Op, detect_anomaly, enable_grad, is_grad_enabled, no_grad
from .backend import BackendError, current, use, using
from .gradcheck import GradcheckError, gradcheck
from .graph import show_graph
from .nn import manual_seed
from .registry import FUNCTIONS
from .tensor import Tensor, tensor

globals().update(vars(FUNCTIONS))  # tv.exp, tv.softmax, tv.conv2d, ...

__version__ = "0.1.0"
__all__ = ["AnomalyError", "BackendError", "GradcheckError", "Op", "Tensor", "current", "detect_anomaly", "enable_grad",
           "gradcheck", "is_grad_enabled", "manual_seed", "models", "nn", "no_grad", "optim", "show_graph", "tensor", "use",
           "using", *vars(FUNCTIONS)]
