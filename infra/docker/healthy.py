"""Ends in 0 when the URL answers with 200, else in 1: what HEALTHCHECK of the images runs."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request

try:
    with urllib.request.urlopen(sys.argv[1], timeout=4) as answer:
        sys.exit(answer.status != 200)
except (OSError, urllib.error.URLError) as error:
    print(error)
    sys.exit(1)
