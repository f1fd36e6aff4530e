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
_CHARACTER = 6.2  # pixels of one label character
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
        f"{span_us:.2f} us predicted ({escape(timeline.knobs.name)} knobs)</text>",
        *_legend(timeline),
        *_axis(span_us, scale, height),
    ]
    for row, track in enumerate(tracks):
        y = _TOP + row * _ROW
        parts.append(f'<text x="{_MARGIN}" y="{y + 15}">{escape(track)}</text>')
        bars = (span for span in timeline.spans if span.track == track)
        parts += [_bar(timeline, span, y, scale, plot) for span in bars]
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


def _bar(timeline: Timeline, span: Span, y: int, scale: float, plot: int) -> str:
    left = max(0.0, timeline.us(span.begin) * scale)
    right = min(float(plot), timeline.us(span.end) * scale)
    wide = max(0.6, right - left)
    title = f"{span.name}: {timeline.us(span.begin):.3f} to {timeline.us(span.end):.3f} us"
    if "bytes" in span.details:
        title += f", {span.details['bytes']} bytes, issued at {_issued(timeline, span):.3f} us"
    bar = (
        f'<rect x="{_LABEL + left:.2f}" y="{y + 3}" width="{wide:.2f}" height="{_ROW - 6}" '
        f'fill="{_COLORS[span.kind]}" {_EDGE}><title>{escape(title)}</title></rect>'
    )
    if span.kind == "unit" or wide < _CHARACTER * min(len(span.name), 6):
        return bar
    fitting = span.name[: int(wide / _CHARACTER)]
    return bar + f'<text x="{_LABEL + left + 2:.2f}" y="{y + 15}">{escape(fitting)}</text>'


def _issued(timeline: Timeline, span: Span) -> float:
    return timeline.us(float(span.details["issued"]))


def perfetto_json(timeline: Timeline) -> str:
    """The timeline as a Chrome trace: one thread per track, times in microseconds."""
    tracks = {name: number for number, name in enumerate(timeline.tracks, start=1)}
    events: list[dict[str, object]] = [
        _metadata("process_name", 0, f"{timeline.title} (predicted, {timeline.knobs.name} knobs)")
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
                "dur": round(timeline.knobs.us(span.end - span.begin), 4),
                "args": details,
            }
        )
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, ensure_ascii=False)


def _metadata(kind: str, thread: int, name: str) -> dict[str, object]:
    return {"name": kind, "ph": "M", "pid": 1, "tid": thread, "args": {"name": name}}
