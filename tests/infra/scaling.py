"""What KEDA asks Prometheus in order to count workers, for a model named `m`."""

from __future__ import annotations

import re

from places import CHART

_TEMPLATE = (CHART / "templates/_triggers.tpl").read_text("utf-8")
_QUERIES = re.findall(r"query: >-\n(.*?)\n    threshold", _TEMPLATE, re.S)

#: Of the chart's template, on one line.
SCALING = " ".join(
    _QUERIES[0]
    .replace("{{ $model | quote }}", '"m"')
    .replace("{{ $scaling.prometheus.lanes | quote }}", '".*"')
    .split()
)
