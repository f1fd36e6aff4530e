"""Every way in which a safetensors file can be broken is told apart."""

import json
import re

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from kimi.checkpoint.files import SafetensorsFile
from kimi.errors import CheckpointError
from tests.unit.checkpoint.build import header_of, write_file, write_raw


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.safetensors"


def refused(path, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        SafetensorsFile(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def entry(start=0, end=8, dtype="F32", shape=(2,)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


@pytest.mark.parametrize(
    "dtype",
    [np.float32, np.float16, np.uint8, np.int32, np.int64, ml_dtypes.bfloat16,
     ml_dtypes.float8_e4m3fn],
)  # fmt: skip
def test_reads_back_every_dtype(path, dtype):
    values = np.arange(24).reshape(2, 3, 4).astype(dtype)
    file = SafetensorsFile(write_file(path, {"odd": np.zeros(3, np.uint8), "x": values}))
    assert file["x"].dtype == dtype
    assert np.array_equal(file["x"], values)


def test_reads_what_the_safetensors_package_writes(path):
    tensors = {"a": np.arange(5, dtype=np.float32), "b": np.ones((2, 0), np.uint8)}
    save_file(tensors, path, metadata={"format": "pt"})
    file = SafetensorsFile(path)
    assert set(file.tensors) == {"a", "b"}
    for name, value in tensors.items():
        assert file[name].shape == value.shape and np.array_equal(file[name], value)


def test_scale_bytes_come_as_uint8(path):
    file = SafetensorsFile(write_raw(path, {"s": entry(0, 2, "F8_E8M0")}, b"\x01\xfe"))
    assert file["s"].dtype == np.uint8 and file["s"].tolist() == [1, 254]
    assert file.tensors["s"].dtype == "F8_E8M0"


def test_scalars_and_empty_files(path):
    assert SafetensorsFile(write_file(path, {"x": np.float32(3)[...]}))["x"] == 3
    assert SafetensorsFile(write_raw(path, {})).tensors == {}


def test_views_copy_nothing_and_cannot_be_written(path):
    file = SafetensorsFile(write_file(path, {"x": np.zeros(4, np.float32)}))
    assert not file["x"].flags.writeable
    assert np.shares_memory(file["x"], file["x"])


def test_an_unknown_name_is_a_key_error(path):
    with pytest.raises(KeyError):
        SafetensorsFile(write_raw(path, {}))["x"]


def test_missing_file(path):
    refused(path, "no such file")


def test_a_folder_instead_of_a_file(path):
    path.mkdir()
    refused(path, "cannot be read: Is a directory")


@pytest.mark.parametrize("content", [b"", b"\x01\0\0"])
def test_too_short(path, content):
    path.write_bytes(content)
    refused(path, f"expected at least 8 bytes, found {len(content)}")


@pytest.mark.parametrize("length", [0, 1, 100_000_001, 2**63])
def test_absurd_header_length(path, length):
    path.write_bytes(length.to_bytes(8, "little") + b"{}")
    refused(path, f"found length {length}: this is no safetensors file")


def test_truncated_header(path):
    path.write_bytes((50).to_bytes(8, "little") + b"{}")
    refused(path, "truncated within the header: expected 58 bytes, found 10")


def test_header_that_is_not_utf8(path):
    refused(write_raw(path, b'{"\xff": 1}'), "header: not UTF-8 at byte 2")


@pytest.mark.parametrize(
    "header", ["{,}", "[" * 100_000, '{"a": ', "\ufeff{}", '{"a": ' + "9" * 5000 + "}"]
)
def test_header_that_is_not_json(path, header):
    refused(write_raw(path, header), "header: not valid JSON")


def test_a_number_that_is_not_finite(path):
    refused(write_raw(path, '{"a": {"shape": [NaN]}}'), "header: shape: expected a finite number")


@pytest.mark.parametrize("header", ["[]", "12"])
def test_header_that_is_no_object(path, header):
    refused(write_raw(path, header), "header: expected a JSON object")


def test_a_name_that_occurs_twice(path):
    one = json.dumps(entry())
    refused(write_raw(path, f'{{"a": {one}, "a": {one}}}', b"\0" * 8), "header: 'a' occurs twice")


@pytest.mark.parametrize("dtype", ["F64", "C64", "BOOL", "F4", "F6_E3M2", "F8_E5M2", "f32", "new"])
def test_a_tensor_of_an_unknown_dtype_is_refused_when_it_is_read(path, dtype):
    tensors = {"a": entry(0, 8, dtype), "b": entry(8, 16)}
    file = SafetensorsFile(write_raw(path, tensors, bytes(16)))
    assert file["b"].tolist() == [0, 0]
    with pytest.raises(CheckpointError, match=f"a: dtype: expected one of BF16, .*found '{dtype}'"):
        file["a"]


@pytest.mark.parametrize("dtype", [None, 7, ["F32"]])
def test_a_dtype_that_is_no_name(path, dtype):
    message = f"a: dtype: expected the name of one, found {re.escape(repr(dtype))}"
    refused(write_raw(path, {"a": entry(dtype=dtype)}, b"\0" * 8), message)


@pytest.mark.parametrize("shape", ["2", None, [-2], [2.0], [True, 2], [[2]]])
def test_bad_shape(path, shape):
    header = {"a": entry() | {"shape": shape}}
    refused(write_raw(path, header, b"\0" * 8), "a: shape: expected a list of sizes, found ")


@pytest.mark.parametrize("offsets", [None, [0], [0, 8, 9], [8, 0], [-8, 0], [0, "8"], [0.0, 8]])
def test_bad_offsets(path, offsets):
    header = {"a": entry() | {"data_offsets": offsets}}
    refused(write_raw(path, header, b"\0" * 8), r"a: data_offsets: expected \[start, end\], found ")


@pytest.mark.parametrize("name", ["a\nb", "\x00", "\ud800"])
def test_a_name_that_cannot_be_printed(path, name):
    refused(write_raw(path, {name: entry()}, bytes(8)), "header: '.*': expected a printable name")


def test_an_entry_that_is_no_object(path):
    refused(write_raw(path, {"a": 3}), "a: expected a JSON object in the header, found 3")


@pytest.mark.parametrize(
    ("shape", "expected"), [([3], 12), ([], 4), ([2**40, 2**40], 2**82), ([0], 0)]
)
def test_offsets_that_contradict_the_shape(path, shape, expected):
    message = rf"a: expected {expected} bytes for F32 {re.escape(str(shape))}, found .* of 8"
    refused(write_raw(path, {"a": entry(shape=shape)}, b"\0" * 8), message)


def test_overlapping_tensors(path):
    header = {"a": entry(0, 8), "b": entry(4, 12)}
    refused(write_raw(path, header, b"\0" * 12), "b: overlaps a: .* start at 8, found 4")


def test_a_gap_between_tensors(path):
    header = {"b": entry(12, 20), "a": entry(0, 8)}
    refused(write_raw(path, header, b"\0" * 20), "b: leaves a gap after a: .* at 8, found 12")


def test_a_gap_before_the_first_tensor(path):
    refused(write_raw(path, {"a": entry(4, 12)}, b"\0" * 12), "a: leaves a gap after the header")


def test_truncated_data(path):
    tensors = {"a": np.zeros(10, np.float32), "b": np.zeros(3, np.uint8)}
    write_raw(path, header_of(tensors), b"\0" * 41)
    refused(path, "truncated: expected 43 bytes of data, found 41")


def test_extra_data(path):
    write_raw(path, {"a": entry()}, b"\0" * 11)
    refused(path, "expected 8 bytes of data, found 11: 3 extra")
