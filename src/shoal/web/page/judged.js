// Comparisons of several runs a side, and sweeps: what differs, by how much, and every run as a dot.

import { html } from "./vendor.js";
import { formatBytes, formatCount, formatRatio, formatUs } from "./format.js";
import { DataTable, FactTable, Verdict } from "./parts.js";

const DIFFERS = "differs";
const NOISE_UNKNOWN = "noise unknown";
const EQUAL = "equal";
const COULD = html`<i>Could have shown</i> is the smallest effect that these runs would show in 8 of 10 cases; for rare events, the smallest number of runs with such an event.`;

export function ComparisonReport({ content }) {
  const { comparison, links } = content;
  const { columns, rows } = comparison;
  const verdicts = [...new Set(columns.flatMap((column) => column.verdicts))];
  const [differing, unknown] = [namesJudged(rows, DIFFERS), namesJudged(rows, NOISE_UNKNOWN)];
  const settings = settingsThatDiffer(columns);
  return html`<h1>${columns.length} side by side</h1>
    ${verdicts.length > 1 ? html`<p class="sentence big"><b>verdicts differ</b>: ${columns.map((column) => `${column.label} ${unique(column.verdicts).join(", ")}`).join("; ")}.</p>` : null}
    ${differing.length ? html`<p class="sentence big"><b>differs</b>: ${differing.join(", ")}.</p>` : null}
    ${unknown.length ? html`<p class="sentence big"><b>noise unknown</b>: ${unknown.join(", ")} differ, but there are too few runs to decide whether that is noise.</p>` : null}
    ${differing.length || unknown.length ? null : html`<p class="sentence big"><b>within noise</b>, or equal, in every metric.</p>`}
    <${FactTable} id="runs" title="The runs" columns=${["column", "verdict", "in words", "runs"]} rows=${columns.map((column) => [column.label, verdictsOf(column), column.sentence, runLinks(column.runs, links)])} />
    <${FactTable} id="metrics" title="Metric by metric" columns=${["metric", ...columns.map((column) => column.label), "difference", "could have shown"]}
      rows=${rows.map((row) => [row.measure.name, ...columns.map((column, place) => cellOf(row, place)), judgementOf(row.judged), row.judged.smallest || "–"])} />
    <p class="quiet">${content.how} ${COULD}</p>
    <section aria-labelledby="dots"><h2 id="dots">Every run</h2><p class="quiet">A dot for each run; a line for the mean if a column has several. Equal metrics are left out.</p>
      <${Panels} rows=${rows} levels=${columns.map((column) => column.label)} /></section>
    ${settings.length ? html`<${FactTable} id="settings" title="Settings that differ" columns=${["setting", ...columns.map((column) => column.label)]} rows=${settings} />` : null}`;
}

export function SweepReport({ content }) {
  const { sweep, sentences, links } = content;
  const { columns, rows } = sweep.comparison;
  const shown = rows.filter((row) => row.judged.judgement !== EQUAL);
  const equal = namesJudged(rows, EQUAL);
  return html`<h1>Sweep of ${sweep.name}</h1>
    <p class="quiet">${sweep.done} of ${sweep.planned} runs, seed ${sweep.seed}.</p>
    ${sentences.map((sentence) => html`<p class="sentence big">${sentence}</p>`)}
    <p class="quiet">${content.how} ${COULD}</p>
    ${Object.entries(sweep.parameters).map(([parameter, levels], place) => html`<${Effect} id=${`effect${place}`} parameter=${parameter} levels=${levels} effects=${sweep.effects.filter((effect) => effect.parameter === parameter)} />`)}
    <${FactTable} id="combinations" title="Every combination" columns=${["combination", "verdicts", "runs", ...shown.map((row) => row.measure.name)]}
      rows=${columns.map((column, place) => [column.label, verdictsOf(column), runLinks(column.runs, links), ...shown.map((row) => cellOf(row, place))])} />
    <p class="quiet">The mean over the repeats of a combination and, if they differ, the least and the greatest value.${equal.length ? ` The same everywhere: ${equal.join(", ")}.` : ""}</p>`;
}

function Effect({ id, parameter, levels, effects }) {
  const cells = effects.map((effect) => [effect.measure.name, ...effect.values.map((values) => formatMeasure(effect.measure, meanOf(values))), describeJudgement(effect.judged), effect.judged.smallest || "–"]);
  return html`<section aria-labelledby=${id}><h2 id=${id}>The effect of ${parameter}</h2>
    <p class="quiet">A dot for each run, over all values of the other parameters; a line for the mean. Metrics that are judged equal are left out.</p>
    <${Panels} rows=${effects} levels=${levels} />
    <${DataTable} caption=${`the effect of ${parameter}`} columns=${["metric", ...levels, "effect", "could have shown"]} rows=${cells} /></section>`;
}

function unique(values) {
  return [...new Set(values)];
}

function verdictsOf(column) {
  return unique(column.verdicts).map((word) => html`<${Verdict} word=${word} /> `);
}

// Links to the reports of the runs, where they are known.
function runLinks(runs, links) {
  return runs.map((run) => html`<span class="run-link">${Object.hasOwn(links, run) ? html`<a href=${links[run]}>${run}</a>` : run} </span>`);
}

function namesJudged(rows, judgement) {
  return rows.filter((row) => row.judged.judgement === judgement).map((row) => row.measure.name);
}

function settingsThatDiffer(columns) {
  const names = unique(columns.flatMap((column) => Object.keys(column.settings)));
  const rows = names.map((name) => [name, ...columns.map((column) => column.settings[name] ?? "–")]);
  return rows.filter(([, ...values]) => new Set(values).size > 1);
}

// Pure: numbers of measures. A latency may be "never".

export function meanOf(values) {
  if (!values.length) return null;
  return values.includes("never") ? "never" : values.reduce((sum, value) => sum + value, 0) / values.length;
}

export function formatMeasure(measure, value) {
  if (value === null || value === "never") return value ?? "–";
  if (measure.unit === "us") return formatUs(value);
  if (measure.unit === "bytes") return formatBytes(value);
  if (measure.unit === "per_s") return `${value.toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 })}/s`;
  if (measure.unit === "s") return `${value.toFixed(2)} s`;
  if (measure.unit === "count") return Number.isInteger(value) ? formatCount(value) : value.toFixed(1);
  return formatRatio(value);
}

// The mean of a column's runs, and their range.
export function cellOf(row, place) {
  const values = row.values[place];
  const mean = formatMeasure(row.measure, meanOf(values));
  const known = values.filter((value) => value !== "never");
  const [low, high] = [Math.min(...known), Math.max(...known)];
  if (values.length < 2 || !known.length || (low === high && known.length === values.length)) return mean;
  return `${mean} (${formatMeasure(row.measure, low)} … ${known.length < values.length ? "never" : formatMeasure(row.measure, high)})`;
}

function describeJudgement(judged) {
  if (judged.chance === null) return judged.judgement;
  return `${judged.judgement} (${judged.chance < 0.001 ? "p < 0.001" : `p = ${Number(judged.chance.toPrecision(2))}`})`;
}

function judgementOf(judged) {
  return judged.judgement === DIFFERS ? html`<b class="differs">${describeJudgement(judged)}</b>` : describeJudgement(judged);
}

// A small picture for each measure: every run is a dot over its level. Each has its own scale, which
// begins at zero unless that hides the differences.

const [PANEL_WIDTH, PANEL_HEIGHT, PANEL_LEFT, PANEL_BOTTOM] = [232, 128, 72, 22];

function Panels({ rows, levels }) {
  const shown = rows.filter((row) => row.judged.judgement !== EQUAL && row.values.some((values) => values.some((value) => value !== "never")));
  if (!shown.length) return html`<p>None differ.</p>`;
  return html`<ul class="panels">${shown.map((row) => html`<li class="panel"><h3>${row.measure.name}</h3><p class="quiet">${judgementOf(row.judged)}${neverNote(row.values)}</p><${Dots} row=${row} levels=${levels} /></li>`)}</ul>`;
}

function neverNote(values) {
  const count = values.flat().filter((value) => value === "never").length;
  return count ? `; never in ${count} run${count === 1 ? "" : "s"}` : "";
}

function Dots({ row, levels }) {
  const finite = row.values.map((values) => values.filter((value) => value !== "never"));
  const [low, high] = scaleOf(finite.flat());
  const [top, bottom, right] = [8, PANEL_HEIGHT - PANEL_BOTTOM, PANEL_WIDTH - 6];
  const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
  const step = (right - PANEL_LEFT) / levels.length;
  const half = Math.min(14, step * 0.35);
  const label = `${row.measure.name}: ${levels.map((level, place) => `${level} ${formatMeasure(row.measure, meanOf(row.values[place]))}`).join(", ")}`;
  const x = (place, count, at) => PANEL_LEFT + step * (place + 0.5) + (count === 1 ? 0 : (at / (count - 1) - 0.5) * half);
  return html`<svg viewBox="0 0 ${PANEL_WIDTH} ${PANEL_HEIGHT}" role="img" aria-label=${label}>
    ${[low, high].map((value) => html`<line class="grid" x1=${PANEL_LEFT} x2=${right} y1=${y(value)} y2=${y(value)} /><text x=${PANEL_LEFT - 6} y=${y(value) + 4} text-anchor="end">${formatMeasure(row.measure, Number(value.toPrecision(3)))}</text>`)}
    ${levels.map((level, place) => html`<text x=${x(place, 1, 0)} y=${bottom + 16} text-anchor="middle"><title>${level}</title>${shorten(level, Math.max(2, Math.min(14, Math.floor(step / 7.5))))}</text>
      ${finite[place].map((value, at) => html`<circle class="dot" cx=${x(place, finite[place].length, at)} cy=${y(value)} r="3.5" />`)}
      ${finite[place].length > 1 ? html`<line class="mean" x1=${x(place, 1, 0) - half} x2=${x(place, 1, 0) + half} y1=${y(meanOf(finite[place]))} y2=${y(meanOf(finite[place]))} />` : null}`)}
  </svg>`;
}

function shorten(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}

function scaleOf(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (low === high) return high > 0 ? [0, high] : [low, low + 1];
  return low >= 0 && low < 0.7 * high ? [0, high] : [low, high];
}
