// Charts over time: one uPlot for each track. All tracks share the range and the crosshair.

import { html, uPlot, useEffect, useRef } from "./vendor.js";
import { readColor } from "./colors.js";
import { decimate } from "./decimate.js";

// Points for each column of pixels, from which on a line is drawn as columns.
const DENSE_POINTS = 1.3;
const SYNC_KEY = "tracks";
const [AXIS_WIDTH, LONGEST_LABEL] = innerWidth < 500 ? [64, 9] : [112, 16];

// `columns` is [times in s, values…]; `series` describes the values: {label, color, fill, width, format}.
// `paint(u, ctx)` draws behind the lines, `cursor` is a moment that is marked in front of them. Dragging calls `onZoom(from, to)`, a double click `onZoom()`.
export function Track(props) {
  const host = useRef(null);
  const chart = useRef(null);
  const latest = useRef(props);
  latest.current = props;
  const shape = JSON.stringify([props.series.map((each) => [each.label, each.color]), props.height, props.isLast, props.yKind]);
  useEffect(() => {
    chart.current = new uPlot(buildOptions(latest, host.current.clientWidth), pickColumns(props, host.current.clientWidth), host.current);
    host.current.querySelectorAll("canvas").forEach((canvas) => canvas.setAttribute("aria-hidden", "true"));
    const drawn = chart.current;
    const observer = new ResizeObserver(() => resize(drawn, host.current, latest.current));
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
    const u = chart.current;
    // One draw for all three: uPlot draws at the end of a batch.
    u.batch(() => {
      u.setData(pickColumns(props, u.width), false);
      u.setScale("x", { min: props.range[0], max: props.range[1] });
      u.redraw(false, true);
    });
  });
  return html`<figure class="track"><figcaption>${props.title}</figcaption><div ref=${host} role="img" aria-label=${props.title}></div></figure>`;
}

function resize(chart, host, props) {
  if (!host.clientWidth || host.clientWidth === chart.width) return;
  chart.setSize({ width: host.clientWidth, height: props.height });
  chart.setData(pickColumns(props, host.clientWidth), false);
  chart.redraw(true, true);
}

// The table behind a chart has all values; the chart has those that its pixels can show.
function pickColumns({ columns, range }, width) {
  return decimate(columns, range[0], range[1], Math.max(100, width - AXIS_WIDTH) * devicePixelRatio);
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
      paths: each.fill || bands ? undefined : buildPath,
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
      drawSeries: [(u, place) => { if (u.series[place].paths === buildPath && isDense(u)) paintColumns(u, place); }],
      draw: [(u) => clip(u, () => paintCursor(u, latest.current.cursor))],
      setSelect: [(u) => {
        const { left, width: chosen } = u.select;
        if (chosen < 4) return;
        latest.current.onZoom(u.posToVal(left, "x"), u.posToVal(left + chosen, "x"));
        u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      }],
    },
  };
}

const linePath = uPlot.paths.linear();

// A line of more points than columns of pixels is drawn as columns: a path of so many corners takes
// a software renderer longer than everything else in the chart.
function buildPath(u, place, first, last) {
  return isDense(u) ? null : linePath(u, place, first, last);
}

function isDense(u) {
  return u.data[0].length > DENSE_POINTS * u.bbox.width;
}

// What a line would cover in each column of pixels, from the column before it on.
function paintColumns(u, place) {
  const { ctx } = u;
  const [times, values] = [u.data[0], u.data[place]];
  const { scale, width } = u.series[place];
  const thick = Math.max(1, width * devicePixelRatio);
  ctx.fillStyle = u.series[place].stroke(u, place);
  const { left, width: across } = u.bbox;
  const { min, max } = u.scales.x;
  const perSecond = across / (max - min || 1);
  const toY = (value) => u.valToPos(value, scale, true);
  clip(u, () => {
    // `least` and `most` of a column, with the last value of the column before.
    let [column, least, most, last] = [-1, 0, 0, null];
    const flush = () => {
      if (column < 0) return;
      const top = toY(most);
      ctx.fillRect(column, top - thick / 2, 1, toY(least) - top + thick);
    };
    for (let row = 0; row < times.length; row += 1) {
      const value = values[row];
      if (value === null || value === undefined) {
        flush();
        [column, last] = [-1, null];
        continue;
      }
      const x = Math.round(left + (times[row] - min) * perSecond);
      if (x !== column) {
        flush();
        column = x;
        least = last === null ? value : Math.min(value, last);
        most = last === null ? value : Math.max(value, last);
      } else if (value < least) least = value;
      else if (value > most) most = value;
      last = value;
    }
    flush();
  });
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

function paintCursor(u, moment) {
  if (moment === null || moment === undefined) return;
  u.ctx.fillStyle = readColor("--text");
  u.ctx.fillRect(u.valToPos(moment, "x", true) - devicePixelRatio / 2, u.bbox.top, Math.max(1, devicePixelRatio), u.bbox.height);
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

// Paints rows of spans: [{label, spans: [{from, to, color, text, share}], marks: [t], phases: [[text, t]]}],
// the first on top. A `share` fills that much of a span's height; `phases` get the lower half of a row.
export function paintRows(u, ctx, rows) {
  rows.forEach((row, place) => {
    const top = u.valToPos(rows.length - place, "y", true);
    const height = u.valToPos(rows.length - place - 1, "y", true) - top;
    const box = { top: top + height * 0.12, height: height * (row.phases ? 0.5 : 0.76) };
    for (const span of row.spans) paintSpan(u, ctx, span, box);
    for (const mark of row.marks || []) paintMark(u, ctx, mark, { top: top + height * 0.1, height: height * 0.8 });
    if (row.phases) paintPhases(u, ctx, row.phases, { top: top + height * 0.66, height: height * 0.3 });
  });
}

function paintSpan(u, ctx, span, { top, height }) {
  const ratio = devicePixelRatio;
  const left = u.valToPos(span.from, "x", true);
  const right = u.valToPos(span.to, "x", true);
  const width = Math.max(2 * ratio, right - left);
  ctx.fillStyle = readColor(span.color);
  ctx.fillRect(left, top, width, height);
  if (span.share) {
    const filled = Math.max(2 * ratio, height * span.share);
    ctx.fillStyle = readColor("--bad");
    ctx.fillRect(left, top + height - filled, width, filled);
  }
  if (!span.text || right - left <= 30 * ratio) return;
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, right - left, height);
  ctx.clip();
  writeText(ctx, span.text, Math.max(left, u.bbox.left) + 4 * ratio, top + height / 2);
  ctx.restore();
}

function writeText(ctx, text, x, y) {
  ctx.fillStyle = readColor("--text");
  ctx.font = `${11 * devicePixelRatio}px system-ui`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  ctx.fillText(text, x, y);
}

function paintMark(u, ctx, mark, { top, height }) {
  const x = u.valToPos(mark, "x", true);
  ctx.fillStyle = readColor("--text");
  ctx.beginPath();
  ctx.moveTo(x, top);
  ctx.lineTo(x - 4 * devicePixelRatio, top + height);
  ctx.lineTo(x + 4 * devicePixelRatio, top + height);
  ctx.fill();
}

// A triangle at each moment, and its name.
function paintPhases(u, ctx, phases, box) {
  const ratio = devicePixelRatio;
  ctx.font = `${11 * ratio}px system-ui`;
  const marks = [...phases].sort((a, b) => a[1] - b[1]).map(([text, t]) => ({ text, t, x: u.valToPos(t, "x", true), width: ctx.measureText(text).width }));
  for (const { texts, left } of groupPhases(marks, 8 * ratio)) writeText(ctx, texts.join(", "), left, box.top + box.height / 2);
  for (const mark of marks) paintMark(u, ctx, mark.t, box);
}

// Names stand to the right of their marks; of marks so close that a name would be over the next
// one, all names stand after the last. Pure.
export function groupPhases(marks, space) {
  const groups = [];
  for (const { text, x, width } of marks) {
    const last = groups[groups.length - 1];
    const isClose = last && x < last.left + last.width + space;
    const group = isClose ? last : { texts: [], width: 0 };
    if (!isClose) groups.push(group);
    group.texts.push(text);
    group.width += width + space;
    // Not over the name of the group before.
    group.left = x + space;
  }
  return groups;
}

export function rowAxis(rows) {
  return {
    yKind: "rows",
    yRange: [0, Math.max(1, rows.length)],
    ySplits: () => rows.map((row, place) => rows.length - place - 0.5),
    yLabels: () => rows.map((row) => (row.label.length > LONGEST_LABEL ? `…${row.label.slice(1 - LONGEST_LABEL)}` : row.label)),
  };
}
