// The flow of messages from sent to received, and percentile curves: pictures in SVG.

import { html } from "./vendor.js";
import { formatCount, formatUs } from "./format.js";

const WIDTH = 1000;
const HEIGHT = 170;
export const STAGE_NAMES = { sent: "sent", source: "source log", mirror: "mirror", target: "target log", received: "received" };

// `stages` are {stage, count, lost, copies}; a click on one filters what is below.
export function FlowDiagram({ stages, chosen, onChoose, note }) {
  const most = Math.max(1, ...stages.map((stage) => stage.count));
  const step = WIDTH / stages.length;
  const size = (count) => (90 * count) / most;
  return html`<figure class="flow"><figcaption>Flow of messages${note}</figcaption>
    <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" aria-hidden="true">
      ${stages.slice(1).map((stage, place) => band(stages[place], stage, place, step, size))}
      ${stages.map((stage, place) => html`<rect class=${stage.stage === chosen ? "stage chosen" : "stage"} x=${place * step + 8} y=${(HEIGHT - 40 - size(stage.count)) / 2} width="14" height=${Math.max(2, size(stage.count))} />`)}
    </svg>
    <div class="stages">${stages.map((stage) => html`<button type="button" aria-pressed=${stage.stage === chosen} onClick=${() => onChoose(stage.stage === chosen ? "" : stage.stage)}>
      <span class="quiet">${STAGE_NAMES[stage.stage]}</span><b>${formatCount(stage.count)}</b>
      ${stage.lost ? html`<span class="lost">${formatCount(stage.lost)} lost before it</span>` : null}
      ${stage.copies ? html`<span class="copied">${formatCount(stage.copies)} duplicated</span>` : null}
    </button>`)}</div>
  </figure>`;
}

// A band as wide as what passes, a red stub that ends where messages are lost, a loop for copies.
function band(before, stage, place, step, size) {
  const [left, right, middle] = [place * step + 22, (place + 1) * step + 8, (HEIGHT - 40) / 2];
  const passed = Math.min(before.count, stage.count);
  const [a, b] = [size(before.count) / 2, size(passed) / 2];
  const lost = stage.lost ? Math.max(5, size(stage.lost)) : 0;
  return html`
    <polygon class="passed" points="${left},${middle - a} ${right},${middle - b} ${right},${middle + b} ${left},${middle + a}" />
    ${lost ? html`<polygon class="lost" points="${left},${middle + a} ${left},${middle + a - lost} ${(left + right) / 2},${HEIGHT - 14} ${(left + right) / 2 - 10},${HEIGHT - 4}" />` : null}
    ${stage.copies ? html`<path class="loop" d="M ${right + 6} ${middle - b} c -30 -40 40 -40 10 0" />` : null}`;
}

// Percentile curves: latency on a log scale over the percentile, which is stretched at its end.
export function PercentileCurves({ curves }) {
  curves = curves.filter((curve) => curve.count);
  const values = curves.flatMap((curve) => curve.points.map(([, value]) => value).filter((value) => value > 0));
  if (!values.length) return null;
  const [low, high] = [Math.log(Math.min(...values) * 0.9), Math.log(Math.max(...values) * 1.1)];
  const stretch = (percent) => Math.min(5, -Math.log10(1 - Math.min(percent, 99.999) / 100));
  // A phone gets a narrower picture, so that its text stays readable.
  const width = innerWidth < 500 ? 400 : 700;
  const x = (percent) => 60 + ((width - 80) * stretch(percent)) / 5;
  const y = (value) => 230 - (210 * (Math.log(value) - low)) / (high - low || 1);
  const ticks = [50, 90, 99, 99.9, 99.99];
  const steps = [0, 1, 2, 3].map((part) => Math.exp(low + ((high - low) * part) / 3));
  // Curves rise, so names have room below on the right.
  return html`<svg class="curves" viewBox="0 0 ${width} 262" role="img" aria-label="Latency by percentile; the table below has the values">
    ${ticks.map((percent) => html`<line class="grid" x1=${x(percent)} x2=${x(percent)} y1="20" y2="230" /><text x=${x(percent)} y="248" text-anchor="middle">p${percent}</text>`)}
    ${steps.map((value) => html`<line class="grid" x1="60" x2=${width - 10} y1=${y(value)} y2=${y(value)} /><text x="54" y=${y(value) + 4} text-anchor="end">${formatUs(value)}</text>`)}
    ${curves.map((curve, place) => html`<polyline class=${`curve c${place % 4}`} points=${curve.points.filter(([, value]) => value > 0).map(([percent, value]) => `${x(percent).toFixed(1)},${y(value).toFixed(1)}`).join(" ")} />
      <text class=${`name c${place % 4}`} text-anchor="end" x=${width - 14} y=${222 - 16 * (curves.length - 1 - place)}>${curve.phase}: ${formatCount(curve.count)} messages${curve.never ? `, ${formatCount(curve.never)} never` : ""}</text>`)}
  </svg>`;
}
