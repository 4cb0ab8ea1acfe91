// One sweep: the effects of its settings, once they are known, and all of its runs.

import { html, useEffect, useState } from "./vendor.js";
import { getJson } from "./api.js";
import { SweepReport } from "./judged.js";
import { Problem } from "./parts.js";
import { buildAddress } from "./router.js";
import { Verdicts, describeSweep } from "./runs.js";

const SWEEP_EVERY_MS = 3000;

export function Sweep({ address }) {
  const { found, problem } = useSweep(address.name);
  if (!found) return html`<main><p><a href="#/">All runs</a></p><h1>${address.name}</h1>${problem ? html`<${Problem} text=${problem} />` : html`<p class="quiet">Loading…</p>`}</main>`;
  const { summary, runs, result } = found;
  const links = Object.fromEntries(runs.map((run) => [run.run, buildAddress("run", run.name)]));
  return html`<main>
    <p><a href="#/">All runs</a></p>
    ${result ? html`<${SweepReport} content=${{ ...result, links }} />` : html`<h1>Sweep of ${summary.experiment}</h1>
      <p class="sentence big">${describeSweep(summary)}</p>
      <p class="quiet">The effects of the settings are known when <code>shoal sweep</code> ends.</p>`}
    ${problem ? html`<${Problem} text=${problem} />` : null}
    <section aria-labelledby="verdicts"><h2 id="verdicts">Runs of this sweep</h2>
      <${Verdicts} list=${{ runs, total: runs.length }} address=${address} /></section>
  </main>`;
}

// Asks again while runs of the sweep go on and the page is visible.
function useSweep(name) {
  const [state, setState] = useState({ found: null, problem: "" });
  useEffect(() => {
    let timer = null;
    let isGone = false;
    const ask = async () => {
      const found = document.hidden ? undefined : await getJson(`sweeps/${encodeURIComponent(name)}`).catch((error) => { setState((old) => ({ ...old, problem: error.message })); return null; });
      if (isGone) return;
      if (found) setState({ found, problem: "" });
      if (found === undefined || (found && found.summary.state === "running")) timer = setTimeout(ask, SWEEP_EVERY_MS);
    };
    ask();
    return () => { isGone = true; clearTimeout(timer); };
  }, [name]);
  return state;
}
