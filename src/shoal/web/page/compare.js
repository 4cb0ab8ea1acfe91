// Two runs side by side. One run on each side: no difference is judged, the noise is unknown.

import { html, useEffect, useState } from "./vendor.js";
import { getJson } from "./api.js";
import { owedLatency } from "./facts.js";
import { formatCount, formatRatio, formatUs } from "./format.js";
import { FlowBar, Notes, Problem, Verdict } from "./parts.js";
import { buildAddress } from "./router.js";

export function Compare({ address }) {
  const names = [address.query.a || "", address.query.b || ""];
  const [runs, setRuns] = useState(null);
  const [problem, setProblem] = useState("");
  const notes = names.includes("") ? ["The address does not name two runs: tick two in the list of runs."] : [];
  useEffect(() => {
    if (notes.length) return;
    Promise.all(names.map((name) => getJson(`runs/${encodeURIComponent(name)}`))).then(setRuns, (error) => setProblem(error.message));
  }, names);
  return html`<main>
    <p><a href="#/">All runs</a></p><h1>Two runs</h1>
    <${Notes} notes=${notes} />
    ${problem ? html`<${Problem} text=${problem} />` : null}
    ${runs ? html`<${SideBySide} runs=${runs} names=${names} />` : null}
  </main>`;
}

function SideBySide({ runs, names }) {
  const rows = compareRows(runs.map((run) => run.result));
  return html`<div class="scroll" tabindex="0" role="region" aria-label="metrics of both runs"><table class="compare">
      <thead><tr><th scope="col">metric</th>${runs.map((run, place) => html`<th scope="col"><a href=${buildAddress("run", names[place])}>${run.summary.run}</a></th>`)}</tr></thead>
      <tbody>
        <tr><th scope="row">verdict</th>${runs.map((run) => html`<td><${Verdict} word=${run.summary.verdict} /><br />${run.summary.sentence}</td>`)}</tr>
        <tr><th scope="row">flow</th>${runs.map((run) => html`<td>${run.summary.numbers ? html`<${FlowBar} flow=${run.summary.numbers.flow} />` : "–"}</td>`)}</tr>
        ${rows.map(([name, ...cells]) => html`<tr class=${cells[0] === cells[1] ? "" : "changed"}><th scope="row">${name}</th>${cells.map((cell) => html`<td>${cell}</td>`)}</tr>`)}
      </tbody></table></div>
    <p class="quiet">One run on each side shows no noise: whether a rate or a latency differs needs three runs a side. <code>shoal compare</code> judges that.</p>`;
}

function compareRows(results) {
  const read = (get, format) => results.map((result) => (result ? format(get(result)) : "–"));
  const latency = (name) => (result) => owedLatency(result.metrics.latency_us.e2e_intended, name);
  const names = [...new Set(results.flatMap((result) => Object.keys((result || { findings: {} }).findings)))].sort();
  return [
    ...["attempts", "ok", "unknown", "failed", "delivered", "lost", "pending"].map((name) => [name, ...read((result) => result.metrics[name], formatCount)]),
    ...["yield", "harvest", "completeness", "duplication", "order"].map((name) => [name, ...read((result) => result.metrics[name], formatRatio)]),
    ...["p50", "p99", "p99.9"].map((name) => [`end-to-end latency ${name}`, ...read(latency(name), formatUs)]),
    ...names.map((name) => [name, ...read((result) => (result.findings[name] || { count: 0 }).count, formatCount)]),
  ];
}
