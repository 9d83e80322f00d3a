"""Reading CIFAR-10's two layouts, and refusing files that are not what they should be."""

import os
import pickle

import numpy as np
import pytest

from tinyvit.data import DataError, cifar10, load


def test_binary_layout(folder, records):
    data = load(folder)
    assert data.official and data.name == "cifar10" and str(folder) in data.note
    assert data.images.shape == (100, 3, 32, 32) and data.test_images.shape == (20, 3, 32, 32)
    assert data.classes[3] == "cat"
    row = records["data_batch_2"][5]
    assert data.labels[25] == row[0]
    assert data.images[25, 1, 2, 3] == row[1 + 1024 + 2 * 32 + 3]  # green plane, third row, fourth column
    assert np.array_equal(data.test_labels, records["test_batch"][:, 0])


def test_python_layout_gives_the_same(folder, python_folder):
    ours, theirs = cifar10.read(folder), cifar10.read(python_folder)
    assert theirs.official
    assert np.array_equal(ours.images, theirs.images) and np.array_equal(ours.labels, theirs.labels)
    assert np.array_equal(ours.test_images, theirs.test_images) and np.array_equal(ours.test_labels, theirs.test_labels)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("as_text", [False, True])
def test_python_layout_with_other_pickles(python_folder, records, protocol, as_text):
    for name, rows in records.items():
        batch = {"labels": rows[:, 0].tolist() if protocol % 2 else rows[:, 0].astype(int), "data": rows[:, 1:].copy()}
        keyed = batch if as_text else {key.encode(): value for key, value in batch.items()}
        (python_folder / name).write_bytes(pickle.dumps(keyed, protocol=protocol))
    assert cifar10.read(python_folder).official


def test_the_folder_above_will_do(folder):
    assert load(folder.parent).official
    assert load(str(folder)).official


def test_foreign_bytes_are_read_and_said(folder, records):
    rows = records["test_batch"].copy()
    rows[4, 100] ^= 1
    (folder / "test_batch.bin").write_bytes(rows.tobytes())
    with pytest.warns(UserWarning, match=r"test_batch\.bin is not the official file") as caught:
        data = load(folder)
    assert not data.official and "test_batch.bin" in data.note and "data_batch" not in data.note
    assert caught[0].filename == __file__  # the warning points at the caller


@pytest.mark.parametrize(("change", "word"), [(lambda raw: raw[:-1], "truncated"), (lambda raw: raw + b"\0", "too long"),
                                              (lambda raw: b"", "empty")])
def test_wrong_sizes(folder, change, word):
    path = folder / "data_batch_3.bin"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=rf"data_batch_3\.bin is {word}: it has [\d,]+ bytes, expected 61,460 .*download"):
        load(folder)


def test_full_size_is_asked_for(tmp_path):
    for name in cifar10.SHA256:
        with open(tmp_path / f"{name}.bin", "wb") as file:
            file.truncate(30_730_000 - (name == "data_batch_1"))  # sparse: takes no disk
    with pytest.raises(DataError, match="30,729,999 bytes, expected 30,730,000"):
        load(tmp_path)


def test_label_out_of_range(folder, records):
    rows = records["data_batch_4"].copy()
    rows[7, 0] = 10
    (folder / "data_batch_4.bin").write_bytes(rows.tobytes())
    with pytest.raises(DataError, match=r"record 7 of .*data_batch_4\.bin has label 10; expected 0 to 9"):
        load(folder)


@pytest.mark.parametrize("label", [-1, 256 + 3])
def test_label_out_of_range_in_a_pickle(python_folder, records, label):
    rows = records["test_batch"]
    batch = {"labels": [label, *rows[1:, 0].tolist()], "data": rows[:, 1:].copy()}
    (python_folder / "test_batch").write_bytes(pickle.dumps(batch))
    with pytest.raises(DataError, match=rf"record 0 of .*test_batch has label {label}"):
        load(python_folder)


def test_missing_files_are_named(folder):
    (folder / "data_batch_2.bin").unlink()
    (folder / "test_batch.bin").unlink()
    with pytest.raises(DataError, match=r"lacks data_batch_2\.bin, test_batch\.bin"):
        load(folder)


def test_folders_without_data(tmp_path):
    with pytest.raises(DataError, match="holds no CIFAR-10"):
        load(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        load(tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="is a file; expected the folder"):
        load(tmp_path / "file")


@pytest.mark.parametrize(("batch", "message"), [
    ([1, 2], "holds a list; expected a dict"),
    ({"labels": [0] * 20}, "'data' in .* is NoneType"),
    ({"labels": [0] * 20, "data": np.zeros((20, 3071), np.uint8)}, r"uint8 \(20, 3071\); expected"),
    ({"labels": [0] * 20, "data": np.zeros((20, 3072))}, "float64"),
    ({"labels": [0] * 19, "data": np.zeros((20, 3072), np.uint8)}, "'labels' .* expected 20 whole numbers"),
    ({"labels": [[0], [1, 2]], "data": np.zeros((20, 3072), np.uint8)}, "'labels' "),
    ({"data": np.zeros((20, 3072), np.uint8)}, "'labels' "),
])
def test_pickles_of_something_else(python_folder, batch, message):
    (python_folder / "data_batch_1").write_bytes(pickle.dumps(batch))
    with pytest.raises(DataError, match=message):
        load(python_folder)


def test_unreadable_file(folder):
    (folder / "data_batch_1.bin").chmod(0)
    if os.access(folder / "data_batch_1.bin", os.R_OK):
        pytest.skip("permissions do not bind this user")
    with pytest.raises(DataError, match="cannot read"):
        load(folder)


@pytest.mark.filterwarnings("ignore::tinyvit.data.DataWarning")
def test_real_cifar10(cifar10_folder):
    data = load(cifar10_folder)
    assert data.images.shape == (50_000, 3, 32, 32) and data.test_images.shape == (10_000, 3, 32, 32)
    np.testing.assert_allclose(data.mean, [0.4914, 0.4822, 0.4465], atol=5e-5)
    np.testing.assert_allclose(data.std, [0.2470, 0.2435, 0.2616], atol=5e-5)
    assert "data_batch" not in data.note  # the training files are the official ones
    for tune in (False, True):
        train, val = data.split(tune)
        assert (len(train), len(val)) == (40_000 if tune else 45_000, 5_000)
        assert not np.intersect1d(train, val).size
        assert (np.bincount(data.labels[val]) == 500).all() and (np.bincount(data.labels[val[:1000]]) == 100).all()
