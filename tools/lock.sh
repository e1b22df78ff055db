#!/bin/sh
# Writes lock/*.txt: every package of an installation, with its version and the hashes of its files. Needs uv.
set -eu
cd "$(dirname "$0")/.."
compile() {
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
        --no-emit-index-url --no-emit-find-links --no-annotate --upgrade "$@"
}
# Build tools are pinned with the rest: ours, and what PySpark needs, which comes as a source package.
echo 'flit_core' | compile pyproject.toml - --output-file lock/runtime.txt
compile pyproject.toml --group dev --constraint lock/runtime.txt --output-file lock/dev.txt
printf 'setuptools\nwheel\n' | compile - --output-file lock/build.txt
compile pyproject.toml --extra pipeline --constraint lock/dev.txt --constraint lock/build.txt --output-file lock/pipeline.txt
compile pyproject.toml --group bench --constraint lock/dev.txt --output-file lock/bench.txt
