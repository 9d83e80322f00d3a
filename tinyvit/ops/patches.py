"""Images to patches and back."""

from __future__ import annotations

from ..registry import case, public
from ..tensor import Tensor, as_tensor


def _pair(patch) -> tuple[int, int]:
    """A patch size (height, width) from an int or a pair."""
    height, width = (patch, patch) if isinstance(patch, int) else patch
    if height < 1 or width < 1:
        raise ValueError(f"a patch must be at least 1 pixel high and wide, got {patch}")
    return height, width


@public(case((2, 3, 4, 6), patch=2), case((1, 2, 4, 6), patch=(4, 3)), case((2, 1, 3, 3), patch=1), case((0, 3, 4, 4), patch=2))
def patchify(x, patch: int | tuple[int, int]) -> Tensor:
    """Cuts images x (B, C, H, W) into N = (H/P)(W/P) patches, row by row: (B, N, C·P·P).

    A patch lists its values in the order (channel, row, column), as a convolution's weight does, so that for
    weight (D, C, P, P) the convolution with stride P is linear(patchify(x, P), weight.reshape(D, -1)).
    Raises ValueError for an image size the patch does not divide. Dosovitskiy et al. 2021, arXiv:2010.11929, section 3.1.
    """
    x, (ph, pw) = as_tensor(x), _pair(patch)
    if x.ndim != 4:
        raise ValueError(f"patchify needs images of shape (B, C, H, W), got {x.shape}: unsqueeze a single image")
    B, C, H, W = x.shape
    if H % ph or W % pw:
        axis, size, by = (2, H, ph) if H % ph else (3, W, pw)
        raise ValueError(f"patchify got an image size the patch does not divide: {H}x{W} with patch {ph}x{pw} (axis {axis}: "
                         f"{size} is not a multiple of {by}); resize or pad to {-(-H // ph) * ph}x{-(-W // pw) * pw}")
    grid = x.reshape(B, C, H // ph, ph, W // pw, pw).transpose(0, 2, 4, 1, 3, 5)
    return grid.reshape(B, (H // ph) * (W // pw), C * ph * pw)


@public(case((2, 6, 12), patch=2, height=4, width=6), case((1, 2, 24), patch=(4, 3), height=4, width=6),
        case((2, 4, 0), patch=2, height=4, width=4))
def unpatchify(tokens, patch: int | tuple[int, int], height: int, width: int) -> Tensor:
    """The inverse of `patchify`: tokens (B, N, C·P·P) to images (B, C, height, width).

    Raises ValueError where the number of tokens or their length does not fit the image and patch size.
    """
    tokens, (ph, pw) = as_tensor(tokens), _pair(patch)
    if tokens.ndim != 3 or tokens.shape[2] % (ph * pw):
        raise ValueError(f"unpatchify needs tokens of shape (B, N, C·{ph}·{pw}), got {tokens.shape}")
    if height % ph or width % pw:
        raise ValueError(f"unpatchify got an image size the patch does not divide: {height}x{width} with patch {ph}x{pw}")
    (B, N, length), rows, columns = tokens.shape, height // ph, width // pw
    if rows * columns != N:
        raise ValueError(f"unpatchify needs {rows * columns} tokens ({rows}x{columns} patches of {ph}x{pw} for "
                         f"{height}x{width}), got {N} on axis 1 of shape {tokens.shape}; drop class tokens first")
    C = length // (ph * pw)
    return tokens.reshape(B, rows, columns, C, ph, pw).transpose(0, 3, 1, 4, 2, 5).reshape(B, C, height, width)
