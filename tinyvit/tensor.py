"""Tensor: an array, its gradient, and the op that made it.

Names follow NumPy for arrays (`axis`, `keepdims`) and PyTorch for learning (`requires_grad`, `backward`, `detach`).
The methods call the ops through the table `FUNCTIONS`, so this file knows none of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .autograd import Op, backward_walk
from .backend import to_numpy, xp
from .registry import FUNCTIONS
from .saved import expose

_UFUNC_NAMES = {"multiply": "mul", "subtract": "sub", "divide": "div", "true_divide": "div", "negative": "neg",
                "absolute": "abs", "fabs": "abs", "power": "pow", "concatenate": "concat", "amax": "max", "amin": "min",
                "float_power": "pow", "expand_dims": "unsqueeze", "add.reduce": "sum", "maximum.reduce": "max",
                "minimum.reduce": "min"}
# What NumPy's own operators call when an array or NumPy scalar stands on the left: array + t, array @ t, array < t, ...
_OPERATORS = {"add": "__radd__", "subtract": "__rsub__", "multiply": "__rmul__", "divide": "__rtruediv__",
              "true_divide": "__rtruediv__", "power": "__rpow__", "matmul": "__rmatmul__", "less": "__gt__",
              "less_equal": "__ge__", "greater": "__lt__", "greater_equal": "__le__", "equal": "__eq__",
              "not_equal": "__ne__"}


class Tensor:
    """An array that remembers how it was computed. Make one with `tinyvit.tensor(data, requires_grad=...)`.

    data: the array, float32 by default. grad: the gradient of what `backward` was called on, an array of the same
    shape, or None. Only a leaf (a tensor nobody computed) collects `grad`; `retain_grad()` asks for it elsewhere.
    """

    __slots__ = ("__weakref__", "_data", "_grad", "_hooks", "_op", "_requires_grad", "_slot")

    _data: Any
    _grad: Any
    _op: Op | None
    _slot: int
    _hooks: list[Callable] | None
    _requires_grad: bool

    def __init__(self, data, requires_grad: bool = False, shared: bool = True):
        """A leaf around an array, not copied. shared: whether others can write into the array, so that it must be watched."""
        self._data = data if type(data) is np.ndarray else xp.asarray(data)
        self._op, self._slot, self._grad, self._hooks = None, 0, None, None
        if shared:
            expose(self._data)
        self._requires_grad = False
        self.requires_grad = requires_grad

    @classmethod
    def _made(cls, data, op: Op | None, slot: int) -> Tensor:
        t = cls.__new__(cls)
        t._data, t._op, t._slot, t._grad, t._hooks = data, op, slot, None, None
        t._requires_grad = op is not None
        return t

    # ------------------------------------------------------------------ the array

    @property
    def data(self):
        """The array itself. Writing into it is not differentiated; backward notices when it needed the old values."""
        expose(self._data)
        return self._data

    @data.setter
    def data(self, value) -> None:
        value = value._data if isinstance(value, Tensor) else xp.asarray(value, dtype=self._data.dtype)
        if value.shape != self.shape:
            raise ValueError(f"data of shape {value.shape} cannot replace data of shape {self.shape}: make a new tensor")
        expose(value)
        self._data = value

    @property
    def shape(self) -> tuple[int, ...]:
        return self._data.shape

    @property
    def ndim(self) -> int:
        return self._data.ndim

    @property
    def size(self) -> int:
        return self._data.size

    @property
    def dtype(self) -> np.dtype:
        return self._data.dtype

    @property
    def T(self) -> Tensor:
        """The tensor with its axes reversed."""
        return FUNCTIONS.transpose(self)

    def numpy(self) -> np.ndarray:
        """The values as a NumPy array: the memory itself on the CPU, a copy from a GPU."""
        return to_numpy(self.data)

    def item(self) -> float:
        """The one value of a tensor of size 1, as a Python number. Raises ValueError for any other size."""
        if self.size != 1:
            raise ValueError(f"item() needs a tensor of one value, and this one has shape {self.shape}: index it, or reduce it "
                             f"with .sum() or .mean()")
        return self._data.item()

    def tolist(self) -> list:
        return self._data.tolist()

    def astype(self, dtype) -> Tensor:
        """The tensor in another floating dtype, in the graph; to integers or bool, outside it."""
        if np.dtype(dtype).kind != "f":
            return Tensor(self._data.astype(dtype), shared=False)
        return FUNCTIONS.astype(self, dtype=dtype)

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        if copy is False and dtype is not None and np.dtype(dtype) != self.dtype:
            raise ValueError(f"a tensor of dtype {self.dtype} becomes {np.dtype(dtype)} only by a copy")
        array = self.numpy()
        return np.array(array, dtype=dtype) if copy else np.asarray(array, dtype=dtype)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        name = ufunc.__name__
        if method == "__call__" and name in _OPERATORS and not kwargs and len(inputs) == 2:
            left, right = inputs
            return getattr(as_tensor(right), _OPERATORS[name])(left)
        if method != "__call__":
            name = f"{name}.{method}"
        ours = _UFUNC_NAMES.get(name, name)
        mend = f"use tv.{ours}(t)" if hasattr(FUNCTIONS, ours) else "there is no such op here"
        if "out" in kwargs:
            mend = "an array cannot take a tensor in place: write a = a + t"
        raise TypeError(f"np.{name} cannot record a gradient for a Tensor: {mend}, or np.{name}(t.numpy()) for plain numbers")

    def __array_function__(self, function, types, args, kwargs):
        name = function.__name__
        ours = _UFUNC_NAMES.get(name, name)
        if hasattr(FUNCTIONS, ours):
            raise TypeError(f"np.{name} cannot record a gradient for a Tensor: use tv.{ours}(...), or "
                            f"np.{name} on t.numpy() for plain numbers")
        return function(*_plain(args), **{k: _plain(v) for k, v in kwargs.items()})

    # ------------------------------------------------------------------ the gradient

    @property
    def requires_grad(self) -> bool:
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value and self._data.dtype.kind != "f":
            raise TypeError(f"only floating tensors can require a gradient, and this one is {self._data.dtype}: give it "
                            f"floats, as in tv.tensor([1.0, 2.0]) or tv.tensor(array.astype(np.float32))")
        if self._op is not None and not value:
            raise RuntimeError("requires_grad can be switched off only on a leaf: use t.detach() for a copy outside the graph")
        self._requires_grad = bool(value)

    @property
    def grad(self):
        """The accumulated gradient: an array of this tensor's shape, or None. Can be assigned an array or a Tensor."""
        return self._grad

    @grad.setter
    def grad(self, value) -> None:
        if value is not None:
            value = xp.array(value._data if isinstance(value, Tensor) else value, dtype=self.dtype)
            if value.shape != self.shape:
                raise ValueError(f"a gradient of shape {value.shape} does not fit a tensor of shape {self.shape}")
        self._grad = value

    @property
    def is_leaf(self) -> bool:
        """Whether no op made this tensor."""
        return self._op is None

    @property
    def grad_fn(self) -> Op | None:
        """The op that made this tensor, or None for a leaf."""
        return self._op

    def backward(self, gradient=None, retain_graph: bool = False) -> None:
        """Add d(self)/d(leaf) to `.grad` of every leaf below, weighted with `gradient` (1 for a tensor of one value).

        Raises RuntimeError if nothing here requires a gradient, if a tensor of several values is given no `gradient`,
        if the graph is gone, or if an array that backward needs was changed in place.
        """
        if not self.requires_grad:
            raise RuntimeError("backward() on a tensor that does not require a gradient: make an input with "
                               "requires_grad=True, and compute outside no_grad()")
        if gradient is None:
            if self.size != 1:
                raise RuntimeError(f"backward() starts from one number, and this tensor has shape {self.shape}: reduce it with "
                                   f".sum() or .mean(), or pass backward(gradient) of that shape")
            gradient = xp.ones(self.shape, self.dtype)
        gradient = gradient._data if isinstance(gradient, Tensor) else xp.asarray(gradient)
        if gradient.shape != self.shape:
            raise ValueError(f"backward() got a gradient of shape {gradient.shape} for a tensor of shape {self.shape}: "
                             f"they must be equal")
        backward_walk(self, gradient.astype(self.dtype, copy=False), retain_graph)

    def detach(self) -> Tensor:
        """The same memory as a leaf outside the graph."""
        return Tensor(self._data, shared=False)

    def register_hook(self, hook: Callable) -> Callable[[], None]:
        """Call `hook(gradient)` when this tensor's gradient is known; what it returns (unless None) replaces it.

        Returns a function that removes the hook.
        """
        if not self.requires_grad:
            raise RuntimeError("register_hook() on a tensor that does not require a gradient: it would never be called")
        if self._op is None:
            self._hooks = hooks = self._hooks if self._hooks is not None else []
        else:
            if self._op.hooks is None:
                self._op.hooks = {}
            hooks = self._op.hooks.setdefault(self._slot, [])
        hooks.append(hook)
        return lambda: hooks.remove(hook) if hook in hooks else None

    def retain_grad(self) -> None:
        """Keep `.grad` of a tensor that is not a leaf too."""
        if self._op is None:
            return
        me = weakref.ref(self)
        if any(getattr(hook, "keeps", None) is me for hook in (self._op.hooks or {}).get(self._slot, ())):
            return

        def keep(g):
            t = me()
            if t is not None:
                t._grad = g.copy() if t._grad is None else t._grad + g

        keep.keeps = me  # type: ignore[attr-defined]
        self.register_hook(keep)

    def zero_grad(self) -> None:
        self._grad = None

    # ------------------------------------------------------------------ looks

    def __repr__(self) -> str:
        body = np.array2string(to_numpy(self._data), precision=4, suppress_small=True, separator=", ", threshold=60,
                               prefix="tensor(")
        parts = [body]
        if self.dtype != np.float32:
            parts.append(f"dtype={self.dtype}")
        if self._op is not None:
            parts.append(f"grad_fn={self._op.name}")
        elif self.requires_grad:
            parts.append("requires_grad=True")
        return f"tensor({', '.join(parts)})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("a 0-d tensor has no length: use .item() for its value")
        return self.shape[0]

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(f"the truth of a tensor of shape {self.shape} is not one value: use (t > 0).numpy().all() "
                             f"or .any()")
        return bool(self._data.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise TypeError(f"only an integer tensor can be an index, and this one is {self.dtype}")
        return int(self.item())

    def __iter__(self) -> Iterator[Tensor]:
        if self.ndim == 0:
            raise TypeError("a 0-d tensor cannot be iterated over: use .item() for its value")
        return iter(FUNCTIONS.unbind(self)) if len(self) else iter(())

    __hash__ = object.__hash__  # == compares elements, so identity is what a dictionary can use

    # ------------------------------------------------------------------ comparisons: no gradient

    def _compare(self, other, function) -> Tensor:
        return Tensor(function(self._data, other._data if isinstance(other, Tensor) else other), shared=False)

    def __eq__(self, other) -> Tensor:  # type: ignore[override]
        return self._compare(other, np.equal)

    def __ne__(self, other) -> Tensor:  # type: ignore[override]
        return self._compare(other, np.not_equal)

    def __lt__(self, other) -> Tensor:
        return self._compare(other, np.less)

    def __le__(self, other) -> Tensor:
        return self._compare(other, np.less_equal)

    def __gt__(self, other) -> Tensor:
        return self._compare(other, np.greater)

    def __ge__(self, other) -> Tensor:
        return self._compare(other, np.greater_equal)

    def argmax(self, axis: int | None = None) -> Tensor:
        """Index of the largest value along `axis`, without gradient."""
        return Tensor(xp.asarray(self._data.argmax(axis)), shared=False)

    # ------------------------------------------------------------------ operators

    def __add__(self, other): return FUNCTIONS.add(self, other)
    def __radd__(self, other): return FUNCTIONS.add(other, self)
    def __sub__(self, other): return FUNCTIONS.sub(self, other)
    def __rsub__(self, other): return FUNCTIONS.sub(other, self)
    def __mul__(self, other): return FUNCTIONS.mul(self, other)
    def __rmul__(self, other): return FUNCTIONS.mul(other, self)
    def __truediv__(self, other): return FUNCTIONS.div(self, other)
    def __rtruediv__(self, other): return FUNCTIONS.div(other, self)
    def __pow__(self, other): return FUNCTIONS.pow(self, other)
    def __rpow__(self, other): return FUNCTIONS.pow(other, self)
    def __matmul__(self, other): return FUNCTIONS.matmul(self, other)
    def __rmatmul__(self, other): return FUNCTIONS.matmul(other, self)
    def __neg__(self): return FUNCTIONS.neg(self)
    def __abs__(self): return FUNCTIONS.abs(self)
    def __getitem__(self, index): return FUNCTIONS.getitem(self, index)

    def __setitem__(self, index, value) -> None:
        raise TypeError("tensors are not written in place, so that gradients stay right: build a new one with tv.where, "
                        "tv.concat or tv.pad, or write into t.data before the tensor is used")

    # ------------------------------------------------------------------ methods that are ops

    def exp(self): return FUNCTIONS.exp(self)
    def log(self): return FUNCTIONS.log(self)
    def sqrt(self): return FUNCTIONS.sqrt(self)
    def abs(self): return FUNCTIONS.abs(self)
    def tanh(self): return FUNCTIONS.tanh(self)
    def sigmoid(self): return FUNCTIONS.sigmoid(self)
    def relu(self): return FUNCTIONS.relu(self)
    def gelu(self, approximate="none"): return FUNCTIONS.gelu(self, approximate)
    def clip(self, low=None, high=None): return FUNCTIONS.clip(self, low, high)
    def sum(self, axis=None, keepdims=False): return FUNCTIONS.sum(self, axis, keepdims)
    def mean(self, axis=None, keepdims=False): return FUNCTIONS.mean(self, axis, keepdims)
    def var(self, axis=None, keepdims=False, ddof=0): return FUNCTIONS.var(self, axis, keepdims, ddof)
    def max(self, axis=None, keepdims=False): return FUNCTIONS.max(self, axis, keepdims)
    def min(self, axis=None, keepdims=False): return FUNCTIONS.min(self, axis, keepdims)
    def softmax(self, axis=-1): return FUNCTIONS.softmax(self, axis)
    def reshape(self, *shape): return FUNCTIONS.reshape(self, *shape)
    def transpose(self, *axes): return FUNCTIONS.transpose(self, *axes)
    def permute(self, *axes): return FUNCTIONS.transpose(self, *axes)
    def swapaxes(self, axis1, axis2): return FUNCTIONS.swapaxes(self, axis1, axis2)
    def squeeze(self, axis=None): return FUNCTIONS.squeeze(self, axis)
    def unsqueeze(self, axis): return FUNCTIONS.unsqueeze(self, axis)
    def flatten(self, start_axis=0): return FUNCTIONS.flatten(self, start_axis)


def _plain(value):
    """`value` with every Tensor in it replaced by its array."""
    if isinstance(value, Tensor):
        return value.numpy()
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(v) for v in value)
    return value


def as_tensor(value) -> Tensor:
    """`value` itself if it is a Tensor, else a constant Tensor around it; numbers and lists become float32."""
    if isinstance(value, Tensor):
        return value
    return Tensor(value if hasattr(value, "dtype") else xp.asarray(value, np.float32))


def tensor(data, requires_grad: bool = False, dtype=None) -> Tensor:
    """A new Tensor with a copy of `data`: lists and numbers become float32, arrays keep their dtype.

    Raises TypeError for integer or bool data with requires_grad=True, and for data that are not numbers.

    >>> tensor([[1, 2], [3, 4]]).dtype
    dtype('float32')
    """
    if isinstance(data, Tensor):
        data = data._data
    if dtype is None and not hasattr(data, "dtype") and not requires_grad:
        dtype = np.float32
    elif dtype is None and not hasattr(data, "dtype"):
        dtype = None if np.asarray(data).dtype.kind in "iub" else np.float32
    try:
        array = xp.array(data, dtype=dtype)
    except ValueError as error:
        raise ValueError(f"tensor() needs numbers in a regular grid: {error}") from None
    if array.dtype.kind not in "fiub":
        raise TypeError(f"a tensor holds real numbers, and this data is of dtype {array.dtype}")
    return Tensor(array, requires_grad, shared=False)
