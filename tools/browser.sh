#!/bin/sh
# Sees to it that there is a Chromium for the tests of the console, where that may be done: as root, on a system with apt.
set -eu
for name in "${HOLDFAST_BROWSER:-chromium}" chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" > /dev/null; then
        exit 0
    fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    echo 'Adding Chromium for the tests of the console (once; about 300 MB) …'
    if { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends chromium; } > /dev/null 2>&1; then
        exit 0
    fi
fi
echo 'NO BROWSER: the pages of the console are not tested. Install Chromium, or name one in HOLDFAST_BROWSER.' >&2
