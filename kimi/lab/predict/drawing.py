"""Writes a timeline as an SVG picture and as a trace that Perfetto and chrome://tracing open."""

import json
from html import escape

from kimi.lab.predict.timeline import Span, Timeline

_COLORS = {
    "scope": "#d8d8e8",
    "wait": "#e8a33d",
    "exchange": "#c8453b",
    "hbm": "#4878a8",
    "remote": "#8a4fa0",
    "local": "#7fa8a0",
    "unit": "#5b9a4c",
}
_MEANINGS = {
    "wait": "waits for a copy",
    "exchange": "waits for peers",
    "hbm": "HBM copy",
    "remote": "copy to a peer",
    "local": "copy inside the core",
    "unit": "unit busy",
    "scope": "named scope",
}
_LABEL, _ROW, _TOP, _MARGIN = 120, 22, 56, 12
_EDGE = 'stroke="white" stroke-width="0.4"'  # keeps back-to-back copies apart
_CHARACTER = 6.6  # pixels of one label character, at most on average
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def draw_svg(timeline: Timeline, width: int = 1600) -> str:
    """A picture of the timeline, one row per track, time in microseconds from left to right."""
    tracks = timeline.tracks
    span_us = timeline.us(timeline.end) or 1.0
    plot = width - _LABEL - _MARGIN
    scale = plot / span_us
    height = _TOP + _ROW * len(tracks) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_MARGIN}" y="18" font-size="14">{escape(timeline.title)}: '
        f"{span_us:.2f} us predicted ({escape(timeline.costs.name)} model)</text>",
        *_legend(timeline),
        *_axis(span_us, scale, height),
    ]
    for row, track in enumerate(tracks):
        y = _TOP + row * _ROW
        parts.append(f'<text x="{_MARGIN}" y="{y + 15}">{escape(track)}</text>')
        spans = [span for span in timeline.spans if span.track == track]
        boxes = [_extent(timeline, span, scale, plot) for span in spans]
        parts += [_bar(timeline, *pair, y) for pair in zip(spans, boxes, strict=True)]
        parts += _names(spans, boxes, y)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _legend(timeline: Timeline) -> list[str]:
    used = {span.kind for span in timeline.spans}
    parts, x = [], float(_MARGIN)
    for kind, meaning in _MEANINGS.items():
        if kind not in used:
            continue
        parts.append(f'<rect x="{x:.0f}" y="28" width="10" height="10" fill="{_COLORS[kind]}"/>')
        parts.append(f'<text x="{x + 14:.0f}" y="37">{meaning}</text>')
        x += 30 + _CHARACTER * len(meaning)
    return parts


def _axis(span_us: float, scale: float, height: int) -> list[str]:
    tick = next((t for t in _TICKS if span_us / t <= 16), _TICKS[-1])
    parts, bottom = [], height - 28
    for n in range(int(span_us / tick) + 1):
        x = _LABEL + n * tick * scale
        parts.append(f'<path d="M{x:.1f} {_TOP - 6}V{bottom}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 14}" fill="#666">{n * tick:g}</text>')
    return [*parts, f'<text x="{_MARGIN}" y="{bottom + 14}" fill="#666">us</text>']


def _extent(timeline: Timeline, span: Span, scale: float, plot: int) -> tuple[float, float]:
    """The pixels at which a bar begins and ends."""
    left = max(0.0, timeline.us(span.begin) * scale)
    right = min(float(plot), timeline.us(span.end) * scale)
    return _LABEL + left, _LABEL + left + max(0.6, right - left)


def _bar(timeline: Timeline, span: Span, extent: tuple[float, float], y: int) -> str:
    left, right = extent
    title = f"{span.name}: {timeline.us(span.begin):.3f} to {timeline.us(span.end):.3f} us"
    if "bytes" in span.details:
        title += f", {span.details['bytes']} bytes, issued at {_issued(timeline, span):.3f} us"
    return (
        f'<rect x="{left:.2f}" y="{y + 3}" width="{right - left:.2f}" height="{_ROW - 6}" '
        f'fill="{_COLORS[span.kind]}" {_EDGE}><title>{escape(title)}</title></rect>'
    )


def _names(spans: list[Span], extents: list[tuple[float, float]], y: int) -> list[str]:
    """Names in the bars of a row, above all of them; of each as much as is free of the next bar.

    Copies overlap in time: a name that ran on would be written over by the next one's.
    """
    parts, free = [], 0.0
    following = [left for left, _ in extents[1:]] + [float("inf")]
    for span, (left, right), after in zip(spans, extents, following, strict=True):
        room = min(right, after) - max(left, free) - 4
        if span.kind == "unit" or room < _CHARACTER * min(len(span.name), 6):
            continue
        fitting = span.name[: int(room / _CHARACTER)]
        start = max(left, free) + 2
        parts.append(f'<text x="{start:.2f}" y="{y + 15}">{escape(fitting)}</text>')
        free = start + _CHARACTER * len(fitting)
    return parts


def _issued(timeline: Timeline, span: Span) -> float:
    return timeline.us(float(span.details["issued"]))


def perfetto_json(timeline: Timeline) -> str:
    """The timeline as a Chrome trace: one thread per track, times in microseconds."""
    tracks = {name: number for number, name in enumerate(timeline.tracks, start=1)}
    events: list[dict[str, object]] = [
        _metadata("process_name", 0, f"{timeline.title} (predicted, {timeline.costs.name} model)")
    ]
    for name, number in tracks.items():
        events.append(_metadata("thread_name", number, name))
        events.append(
            {"name": "thread_sort_index", "ph": "M", "pid": 1, "tid": number}
            | {"args": {"sort_index": number}}
        )
    for span in timeline.spans:
        details = dict(span.details)
        if "issued" in details:
            details["issued"] = round(_issued(timeline, span), 4)
        events.append(
            {
                "name": span.name,
                "cat": span.kind,
                "ph": "X",
                "pid": 1,
                "tid": tracks[span.track],
                "ts": round(timeline.us(span.begin), 4),
                "dur": round(timeline.costs.us(span.end - span.begin), 4),
                "args": details,
            }
        )
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, ensure_ascii=False)


def _metadata(kind: str, thread: int, name: str) -> dict[str, object]:
    return {"name": kind, "ph": "M", "pid": 1, "tid": thread, "args": {"name": name}}
