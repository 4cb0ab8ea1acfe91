// A report: one file that shows the data which is written into it, without any server.

import { html, useEffect, useState } from "./vendor.js";
import { formatTime } from "./format.js";
import { ComparisonReport, SweepReport } from "./judged.js";
import { parseAddress } from "./router.js";
import { RunBody } from "./run.js";
import { addEvents, emptyLog } from "./series.js";

const KINDS = { run: RunReport, comparison: ComparisonReport, sweep: SweepReport };

// The data of this file; null in the page of shoal serve.
export function readReport() {
  const found = document.getElementById("report");
  return found ? JSON.parse(found.textContent) : null;
}

export function Report({ content }) {
  const [address, setAddress] = useState(parseAddress(location.hash));
  useEffect(() => {
    const follow = () => setAddress(parseAddress(location.hash));
    window.addEventListener("hashchange", follow);
    return () => window.removeEventListener("hashchange", follow);
  }, []);
  const Kind = KINDS[content.kind];
  return html`<main><${Kind} content=${content} address=${address} /></main>`;
}

function RunReport({ content, address }) {
  const { result, manifest, page } = content;
  const logs = Object.fromEntries(Object.entries(content.events).map(([part, events]) => [part, addEvents(emptyLog(), events, true)]));
  const run = { summary: { run: result.run, state: "finished", verdict: result.verdict, sentence: result.sentence }, manifest, result };
  const command = (manifest.command || []).join(" ");
  return html`<h1>${result.run}</h1>
    <p class="quiet">${manifest.started_us ? `Started ${formatTime(manifest.started_us)} UTC.` : null}</p>
    <${RunBody} run=${run} page=${page} logs=${logs} address=${address} link=${(witness) => lifeCommand(witness, result.run)} />
    <section aria-labelledby="again"><h2 id="again">Run it again</h2>
      ${command ? html`<p><code>${command}</code></p>` : null}
      <p>Judge the same ledgers again, without any Kafka: <code>shoal audit ${result.run}</code></p></section>`;
}

// A report has no ledgers, so it names the command that reads them.
function lifeCommand({ topic, producer, lane, sequence }, run) {
  return html`<p>Its life: <code>shoal runs message ${[run, topic, producer, lane, sequence].map(quoteWord).join(" ")}</code></p>`;
}

function quoteWord(word) {
  const text = String(word);
  return /^[\w./:@-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
