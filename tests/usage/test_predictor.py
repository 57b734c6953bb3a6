"""The models, and the file that keeps them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agent.usage.prediction import Peak
from agent.usage.predictor import FILE, SAVE_SECONDS, Predictor

GIB = 1 << 30
START = 1_700_000_000.0


def trained(folder: Path, minutes: int = 20) -> Predictor:
    predictor = Predictor(str(folder / FILE))
    for minute in range(minutes):
        predictor.train({"a": (2.0, 4.0 * GIB), "b": (0.0, 0.0)}, START + 60 * minute)
    return predictor


def test_models_survive_a_restart(tmp_path: Path) -> None:
    before = trained(tmp_path).peaks()
    assert 2000 <= before["a"].cpu_milli <= 2100
    assert 4 * GIB <= before["a"].memory_bytes <= 4.3 * GIB
    assert before["b"] == Peak(25, 5 << 20)
    after = Predictor(str(tmp_path / FILE))
    assert after.peaks() == before
    after.train({"a": (2.0, 4.0 * GIB)}, START + 1300)
    assert after.peaks()["a"] == before["a"]


def test_a_model_without_samples_is_dropped(tmp_path: Path) -> None:
    predictor = trained(tmp_path)
    predictor.train({"a": (1.0, 1.0)}, START + 60 * 19 + 1800)
    assert set(predictor.peaks()) == {"a"}


def test_the_file_is_written_seldom(tmp_path: Path) -> None:
    predictor = Predictor(str(tmp_path / FILE))
    path = tmp_path / FILE
    predictor.train({"a": (1.0, 1.0)}, START)
    first = path.read_bytes()
    predictor.train({"b": (1.0, 1.0)}, START + SAVE_SECONDS - 1)
    assert path.read_bytes() == first
    predictor.train({"b": (1.0, 1.0)}, START + SAVE_SECONDS)
    assert path.read_bytes() != first


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b'{"models": 5}',
        b'{"models": {"a": {"seen_at": 0}}}',
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_replaced(
    tmp_path: Path, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_bytes(text)
    predictor = trained(tmp_path)
    assert f"the predictions start anew: {tmp_path / FILE}: " in caplog.text
    assert Predictor(str(tmp_path / FILE)).peaks() == predictor.peaks()


def test_buckets_that_do_not_exist_are_ignored(tmp_path: Path) -> None:
    trained(tmp_path)
    path = tmp_path / FILE
    body = msgspec.json.decode(path.read_bytes())
    body["models"]["a"]["cpus"]["bucketWeights"] |= {"-1": 5, "9999": 5, "3": -5}
    path.write_bytes(msgspec.json.encode(body))
    assert 1900 <= Predictor(str(tmp_path / FILE)).peaks()["a"].cpu_milli <= 2100


def test_a_folder_that_is_gone_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Predictor(str(tmp_path / "gone" / FILE)).train({"a": (1.0, 1.0)}, START)
    assert "the predictions are not kept: " in caplog.text
