"""Images to learn from: CIFAR-10, an offline set made here, augmentation, and the loader that makes batches of them.

    data = load()                                     # CIFAR-10, or the offline set and a reason
    train, val = data.split()
    loader = Loader(data.images[train], data.labels[train], 128, shuffle=True, augment=standard_augment(),
                    mean=data.mean, std=data.std, seed=0)
    for x, y in loader.epoch(0): ...                  # float32 (B, 3, 32, 32), int64 (B,)
"""

from .augment import alternating_flip, cutout, mixup, normalize, one_hot, random_crop, random_flip, standard_augment
from .dataset import Dataset
from .errors import DataError, DataWarning
from .loader import Loader
from .sources import cache_folder, load, where

__all__ = ["DataError", "DataWarning", "Dataset", "Loader", "alternating_flip", "cache_folder", "cutout", "load", "mixup",
           "normalize", "one_hot", "random_crop", "random_flip", "standard_augment", "where"]
