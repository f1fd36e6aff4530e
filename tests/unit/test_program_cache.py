"""Compiled programs between runs: found again, shared, bounded, and never in the way."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax._src import compilation_cache

from kimi import program_cache, startup
from kimi.program_cache import Store, keep_programs


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """jax as if no store had been opened yet; `KIMI_CACHE_DIR` names a folder of the test's own."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = [getattr(jax.config, name) for name in names]
    monkeypatch.setenv(startup.CACHE_DIR, str(tmp_path / "cache"))
    monkeypatch.setattr(program_cache, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(compilation_cache, "get_file_cache", compilation_cache.get_file_cache)
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", None)
    yield tmp_path / "cache"
    compilation_cache.reset_cache()
    for name, value in zip(names, before, strict=True):
        jax.config.update(name, value)


def entries(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def compile_anew() -> float:
    """A program that jax has not compiled in this process, though maybe in another."""

    @jax.jit
    def same_each_time(x):
        return jnp.sin(x) * 2 + 1

    return float(same_each_time(0.0))


def test_a_program_is_read_again(fresh):
    hits = []

    def count(name, **_):
        hits.append(name.rsplit("/", 1)[1])

    jax.monitoring.register_event_listener(count)
    try:
        keep_programs()
        assert [compile_anew(), compile_anew()] == [1.0, 1.0]
    finally:
        jax.monitoring.unregister_event_listener(count)
    assert (hits.count("cache_misses"), hits.count("cache_hits")) == (1, 1)
    assert len(entries(fresh)) == 1


@pytest.mark.parametrize("damage", [b"", b"x", None])
def test_a_damaged_program_is_compiled_and_replaced(fresh, damage):
    """Warnings are errors in these tests: jax does not complain either."""
    keep_programs()
    compile_anew()
    (path,) = entries(fresh)
    whole = path.read_bytes()
    broken = whole[:-1] + bytes([whole[-1] ^ 1]) if damage is None else damage
    path.write_bytes(broken)
    assert compile_anew() == 1.0
    (path,) = entries(fresh)
    assert path.read_bytes() != broken


def test_a_full_disk_is_no_error(fresh, monkeypatch):
    keep_programs()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(program_cache.os, "replace", full)
    assert compile_anew() == 1.0
    assert entries(fresh) == []


def test_ctrl_c_while_a_program_is_written_is_not_lost(tmp_path, monkeypatch):
    store = Store(tmp_path)
    replace = os.replace

    def interrupt(source, target):
        replace(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(program_cache.os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.put("a", b"program")
    assert store.get("a") == b"program"


def test_a_reader_sees_a_whole_program_or_none(tmp_path):
    programs = {bytes([i]) * 100_000 for i in range(8)}

    def write(program):
        for _ in range(20):
            Store(tmp_path).put("key", program)

    def read(_):
        return [Store(tmp_path).get("key") for _ in range(20)]

    with ThreadPoolExecutor(16) as pool:
        reads = [pool.submit(read, i) for i in range(8)]
        list(pool.map(write, programs))
        found = {program for future in reads for program in future.result()}
    assert found <= programs | {None}
    assert [path.name for path in entries(tmp_path)] == ["key"]


def test_the_least_recently_used_programs_go(tmp_path, monkeypatch):
    store = Store(tmp_path)
    for age, key in enumerate(("new", "used", "old")):
        store.put(key, bytes(1000))
        os.utime(tmp_path / key, (1e9 - age, 1e9 - age))
    store.get("used")
    monkeypatch.setattr(program_cache, "MAX_BYTES", 1500)
    Store(tmp_path)
    assert [path.name for path in entries(tmp_path)] == ["used"]


def test_a_named_folder_that_cannot_be_written_is_one_line(fresh, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv(startup.CACHE_DIR, str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=r"KIMI_CACHE_DIR: expected a folder .* found '.*file'"):
        keep_programs()
    assert compile_anew() == 1.0


@pytest.mark.parametrize("home", ["/dev/null", "/proc/none"])
def test_an_unwritable_home_is_no_error(fresh, monkeypatch, home):
    monkeypatch.delenv(startup.CACHE_DIR)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", home)
    keep_programs()
    assert compile_anew() == 1.0
    assert jax.config.jax_compilation_cache_dir is None


def test_the_users_own_folder_stays(fresh, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    keep_programs()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "own")
    assert not fresh.exists()


def test_where_programs_are_kept(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr(sys, "platform", "linux")
    for named, base, expected in [
        ("off", "/x", None),
        ("", "/x", None),
        ("/there", "/x", "/there"),
        (None, "/x", "/x/kimi-k3"),
        (None, "relative", "/home/me/.cache/kimi-k3"),
        (None, "", "/home/me/.cache/kimi-k3"),
    ]:
        monkeypatch.setenv("XDG_CACHE_HOME", base)
        monkeypatch.delenv(startup.CACHE_DIR, raising=False)
        if named is not None:
            monkeypatch.setenv(startup.CACHE_DIR, named)
        assert startup.cache_folder() == (expected and Path(expected))
    monkeypatch.delenv(startup.CACHE_DIR, raising=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert startup.cache_folder() == Path("/home/me/Library/Caches/kimi-k3")


def test_machines_of_another_kind_keep_their_own(monkeypatch):
    here = program_cache._machine()
    assert here == program_cache._machine()
    monkeypatch.setattr(program_cache.os, "cpu_count", lambda: 999)
    assert program_cache._machine() != here
