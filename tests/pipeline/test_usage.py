"""What a person may say wrongly to `holdfast pipeline run` and `index`: told at once, and nothing is made. No Spark."""

from pathlib import Path

import pytest

from holdfast.cli import pipeline
from holdfast.cli.output import ExitCode, Failure
from tests.relay.running import running


@pytest.mark.parametrize("every", ["", "soon", "0s", "-1s", "1d", "1e3s", "nan", "60 s"])
def test_a_time_between_batches_that_is_none_is_told_before_anything_is_made(tmp_path: Path, every: str) -> None:
    lake = tmp_path / "lake"
    with pytest.raises(Failure, match="60s, 5m or 1h") as refused:
        pipeline.run(relay="http://127.0.0.1:1", lake=lake, every=every)
    assert refused.value.code is ExitCode.USAGE
    with pytest.raises(Failure, match="60s, 5m or 1h"):
        pipeline.index(lake=lake, device=["socket"], every=every)
    assert not lake.exists()


@pytest.mark.parametrize("patience_s", [-1.0, float("nan"), float("inf")])
def test_a_patience_without_an_end_is_told_before_anything_is_made(tmp_path: Path, patience_s: float) -> None:
    with pytest.raises(Failure, match="number of seconds"):
        pipeline.run(relay="http://127.0.0.1:1", lake=tmp_path / "lake", patience_s=patience_s)
    assert not (tmp_path / "lake").exists()


def test_for_sources_that_do_not_answer_no_lake_is_begun(tmp_path: Path) -> None:
    lake, token = tmp_path / "lake", tmp_path / "token"
    with running(tmp_path / "data") as relay:
        token.write_text("hft1_of-another-relay")
        with pytest.raises(Failure, match="Mint a token"):
            pipeline.run(relay=relay.url, lake=lake, token_file=token)
        token.write_text(f"{relay.token().strip()}\n{relay.token()}")
        with pytest.raises(Failure, match="has a line break") as refused:
            pipeline.run(relay=relay.url, lake=lake, token_file=token)
    assert refused.value.code is ExitCode.USAGE
    with pytest.raises(Failure, match="did not answer"):
        pipeline.run(relay=relay.url, lake=lake, patience_s=0)
    with pytest.raises(Failure, match="did not answer"):
        pipeline.index(lake=lake, device=[str(tmp_path / "socket")], patience_s=0)
    assert not lake.exists()
