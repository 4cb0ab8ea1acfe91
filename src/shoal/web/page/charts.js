// Charts over time: one uPlot for each track. All tracks share the range and the crosshair.

import { html, uPlot, useEffect, useRef } from "./vendor.js";
import { readColor } from "./colors.js";

const SYNC_KEY = "tracks";
const [AXIS_WIDTH, LONGEST_LABEL] = innerWidth < 500 ? [64, 9] : [112, 16];

// `columns` is [times in s, values…]; `series` describes the values: {label, color, fill, width, format}.
// `paint(u, ctx)` draws behind the lines. Dragging calls `onZoom(from, to)`, a double click `onZoom()`.
export function Track(props) {
  const host = useRef(null);
  const chart = useRef(null);
  const latest = useRef(props);
  latest.current = props;
  const shape = JSON.stringify([props.series.map((each) => [each.label, each.color]), props.height, props.isLast, props.yKind]);
  useEffect(() => {
    chart.current = new uPlot(buildOptions(latest, host.current.clientWidth), props.columns, host.current);
    host.current.querySelectorAll("canvas").forEach((canvas) => canvas.setAttribute("aria-hidden", "true"));
    const observer = new ResizeObserver(() => resize(chart.current, host.current, latest.current));
    observer.observe(host.current);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const redraw = () => chart.current.redraw(false, true);
    dark.addEventListener("change", redraw);
    const onPrint = () => { chart.current.setSize({ width: host.current.clientWidth, height: latest.current.height }); redraw(); };
    window.addEventListener("beforeprint", onPrint);
    window.addEventListener("afterprint", onPrint);
    return () => {
      observer.disconnect();
      dark.removeEventListener("change", redraw);
      window.removeEventListener("beforeprint", onPrint);
      window.removeEventListener("afterprint", onPrint);
      chart.current.destroy();
    };
  }, [shape]);
  useEffect(() => {
    chart.current.setData(props.columns, false);
    chart.current.setScale("x", { min: props.range[0], max: props.range[1] });
    chart.current.redraw(false, true);
  });
  return html`<figure class="track"><figcaption>${props.title}</figcaption><div ref=${host} role="img" aria-label=${props.title}></div></figure>`;
}

function resize(chart, host, props) {
  if (host.clientWidth && host.clientWidth !== chart.width) chart.setSize({ width: host.clientWidth, height: props.height });
}

function buildOptions(latest, width) {
  const { series, height, isLast, yKind, bands } = latest.current;
  const axis = { stroke: () => readColor("--quiet"), grid: { stroke: () => readColor("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  return {
    width, height,
    padding: [6, 28, isLast ? 0 : 4, 0],
    scales: { x: { time: true, range: () => latest.current.range }, y: yScale(latest, yKind) },
    axes: [
      { ...axis, size: isLast ? 32 : 0, space: 110, values: (u, splits, index, space, step) => splits.map((value) => (isLast ? formatTick(value, step) : "")) },
      { ...axis, size: AXIS_WIDTH, filter: (u, splits) => splits, values: (u, splits) => (latest.current.yLabels || formatPlain)(u, splits), splits: latest.current.ySplits ? (u) => latest.current.ySplits(u) : undefined, grid: { ...axis.grid, show: yKind !== "rows" } },
    ],
    series: [{ label: "time (UTC)", value: (u, value) => (value ? new Date(value * 1000).toISOString().slice(11, 23) : "–") }, ...series.map((each) => ({
      label: each.label,
      stroke: () => readColor(each.color),
      fill: each.fill ? () => readColor(each.fill) : undefined,
      width: each.width ?? 1.5,
      spanGaps: false,
      points: { show: false },
      value: (u, value) => (value === null || value === undefined ? "–" : (each.format || String)(value)),
    }))],
    bands: (bands || []).map((band) => ({ series: band.series, fill: () => readColor(band.fill) })),
    tzDate: (s) => uPlot.tzDate(new Date(s * 1000), "UTC"),
    legend: { show: series.length > 0, live: true },
    cursor: {
      y: false,
      points: { show: series.length > 0 && yKind !== "rows" },
      drag: { x: true, y: false, setScale: false },
      sync: { key: SYNC_KEY, filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
      bind: { dblclick: () => () => latest.current.onZoom() },
    },
    hooks: {
      drawClear: [(u) => clip(u, () => paintBehind(u, latest.current))],
      setSelect: [(u) => {
        const { left, width: chosen } = u.select;
        if (chosen < 4) return;
        latest.current.onZoom(u.posToVal(left, "x"), u.posToVal(left + chosen, "x"));
        u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      }],
    },
  };
}

function yScale(latest, yKind) {
  if (yKind === "log") return { distr: 3, range: () => latest.current.yRange };
  if (yKind === "rows") return { range: () => latest.current.yRange };
  return { range: (u, low, high) => [0, Math.max(1e-9, high || 1) * 1.08] };
}

function paintBehind(u, props) {
  for (const [from, to] of props.spans || []) {
    const left = u.valToPos(from, "x", true);
    const right = Math.max(left + 2, u.valToPos(to, "x", true));
    u.ctx.fillStyle = readColor("--span");
    u.ctx.fillRect(left, u.bbox.top, right - left, u.bbox.height);
  }
  if (props.paint) props.paint(u, u.ctx);
}

function clip(u, draw) {
  u.ctx.save();
  u.ctx.beginPath();
  u.ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
  u.ctx.clip();
  draw();
  u.ctx.restore();
}

function formatTick(value, step) {
  return new Date(value * 1000).toISOString().slice(11, step < 1 ? 23 : 19);
}

function formatPlain(u, splits) {
  return splits.map((value) => (value === null ? "" : Math.abs(value) >= 1e6 ? `${value / 1e6}M` : Math.abs(value) >= 1e4 ? `${value / 1e3}k` : String(Number(value.toPrecision(4)))));
}

// Paints rows of spans: [{label, spans: [{from, to, color, text}], marks: [t]}], the first on top.
export function paintRows(u, ctx, rows) {
  const ratio = devicePixelRatio;
  rows.forEach((row, place) => {
    const top = u.valToPos(rows.length - place, "y", true);
    const height = u.valToPos(rows.length - place - 1, "y", true) - top;
    for (const span of row.spans) {
      const left = u.valToPos(span.from, "x", true);
      const right = u.valToPos(span.to, "x", true);
      ctx.fillStyle = readColor(span.color);
      ctx.fillRect(left, top + height * 0.12, Math.max(2 * ratio, right - left), height * 0.76);
      if (span.text && right - left > 30 * ratio) {
        ctx.fillStyle = readColor("--text");
        ctx.font = `${11 * ratio}px system-ui`;
        ctx.textBaseline = "middle";
        ctx.textAlign = "left";
        ctx.save();
        ctx.beginPath();
        ctx.rect(left, top, right - left, height);
        ctx.clip();
        ctx.fillText(span.text, Math.max(left, u.bbox.left) + 4 * ratio, top + height / 2);
        ctx.restore();
      }
    }
    for (const mark of row.marks || []) {
      const x = u.valToPos(mark, "x", true);
      ctx.fillStyle = readColor("--text");
      ctx.beginPath();
      ctx.moveTo(x, top + height * 0.1);
      ctx.lineTo(x - 4 * ratio, top + height * 0.9);
      ctx.lineTo(x + 4 * ratio, top + height * 0.9);
      ctx.fill();
    }
  });
}

export function rowAxis(rows) {
  return {
    yKind: "rows",
    yRange: [0, Math.max(1, rows.length)],
    ySplits: () => rows.map((row, place) => rows.length - place - 0.5),
    yLabels: () => rows.map((row) => (row.label.length > LONGEST_LABEL ? `…${row.label.slice(1 - LONGEST_LABEL)}` : row.label)),
  };
}
