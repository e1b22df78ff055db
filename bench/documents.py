"""One busy document among many: does it hold up the run?

    .venv/bin/python bench/documents.py [--snapshots 1000000] [--documents 100000] [--hot 100000]

The same number of snapshots twice, in one session: spread evenly over the documents, and with so many of them in one. What is
compared is the time in which the pipeline finds what is current, by its own functions; each is run once before it counts.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.pipeline.session import SessionSettings, open_session
from holdfast.pipeline.tables._snapshot import snapshots, with_standing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshots", type=int, default=1_000_000)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--hot", type=int, default=100_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spark = open_session(SessionSettings(master="local[2]", memory_mb=4096), Path(folder))
        took = {}
        for hot in (0, asked.hot):
            path = f"{folder}/history-{hot}"
            history(spark, asked.snapshots, asked.documents, hot).write.parquet(path)
            took[hot] = min(timed(spark.read.parquet(path)) for _ in range(2))
        spark.stop()
    for hot, seconds in took.items():
        print(f"{asked.snapshots:,} snapshots, {hot:,} of them in one document: {seconds:.1f} s")
    print(f"ratio: {took[asked.hot] / took[0]:.2f}")


def history(spark: "SparkSession", count: int, documents: int, hot: int) -> "DataFrame":
    """Entries of a relay. A document's snapshots know of each other, but for one in ten, which was made elsewhere."""
    return spark.sql(f"""
        WITH placed AS (
            SELECT id + 1 AS seq, IF(id < {hot}, 'hot', concat('doc-', id % {documents})) AS d,
                   IF(id < {hot}, id, id DIV {documents}) + 1 AS version
            FROM range({count})
        )
        SELECT 'relay:bench' AS origin, seq, timestamp_micros(1780000000000000 + seq) AS at, 'snapshot' AS kind,
               unhex(sha2(string(seq), 256)) AS event_id, 300L AS size,
               encode(concat('{{"author":"', repeat('a', 64), '","c":null,"created_at":1780000000,"d":"', d,
                   '","kind":40000,"o":"put","vc":[["laptop",', version, ']',
                   IF(version % 10 = 0, concat(',["phone",', version DIV 10, ']'), ''), ']}}'), 'UTF-8') AS detail
        FROM placed
    """)


def timed(entries: "DataFrame") -> float:
    began_at = time.monotonic()
    with_standing(snapshots(entries)).where("is_current").write.format("noop").mode("overwrite").save()
    return time.monotonic() - began_at


if __name__ == "__main__":
    main()
