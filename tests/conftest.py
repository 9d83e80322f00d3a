"""Shared by all tests: where real CIFAR-10 is, if it is anywhere, and helpers that compare arrays as a whole."""

import os

import numpy as np
import pytest


@pytest.fixture(scope="session")
def cifar10_folder():
    """The folder of real CIFAR-10 files named by TINYVIT_DATA; tests that want it skip where it is not set."""
    folder = os.environ.get("TINYVIT_DATA")
    if not folder or not os.path.isdir(folder):
        pytest.skip("TINYVIT_DATA names no folder with CIFAR-10")
    return folder


@pytest.fixture
def rng():
    return np.random.default_rng(0)
