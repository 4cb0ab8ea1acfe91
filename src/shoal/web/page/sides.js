// The records of source and target at the first difference, side by side.

import { html, useEffect, useState } from "./vendor.js";
import { getJson } from "./api.js";
import { formatCount } from "./format.js";
import { Problem } from "./parts.js";

export function SidesView({ id, row, onClose }) {
  const [sides, setSides] = useState(null);
  const [problem, setProblem] = useState("");
  const difference = row && row.difference;
  const key = difference ? `${row.partition} ${difference.source_offset} ${difference.target_offset}` : "";
  useEffect(() => {
    setSides(null);
    setProblem("");
    if (!difference) return;
    const query = new URLSearchParams({ thing: id, source: row.partition, target: row.target, source_offset: difference.source_offset, target_offset: difference.target_offset });
    getJson(`sides?${query}`).then(setSides, (error) => setProblem(error.message));
  }, [key]);
  return html`<section class="sides-view" aria-labelledby="sides"><h2 id="sides">Where it differs</h2>
    <p><button type="button" onClick=${onClose}>Close</button></p>
    ${row ? null : html`<p>The address names a partition that this mirror does not copy.</p>`}
    ${row && !difference ? html`<p>${row.partition} does not differ any more.</p>` : null}
    ${difference ? html`<p class="sentence big">${row.partition}: ${difference.what}.</p>` : null}
    ${problem ? html`<${Problem} text=${problem} />` : null}
    ${difference && !sides && !problem ? html`<p class="quiet" role="status">Reading both records…</p>` : null}
    ${sides && difference ? html`<${BothRecords} sides=${sides} row=${row} />` : null}
  </section>`;
}

function BothRecords({ sides, row }) {
  const { source_offset: source, target_offset: target } = row.difference;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="both records"><table class="sides">
      <thead><tr><th scope="col">field</th><th scope="col">source ${row.partition}${source < 0 ? "" : `, offset ${formatCount(source)}`}</th><th scope="col">target ${row.target}${target < 0 ? "" : `, offset ${formatCount(target)}`}</th></tr></thead>
      <tbody>${sides.fields.map((field) => html`<tr class=${field.is_equal ? "" : "changed"}><th scope="row">${field.field}</th>
        <${Value} parts=${field.source} size=${field.sizes[0]} first=${field.first} isEqual=${field.is_equal} />
        <${Value} parts=${field.target} size=${field.sizes[1]} first=${field.first} isEqual=${field.is_equal} /></tr>`)}</tbody>
    </table></div>
    <div class="around">${["source", "target"].map((side) => html`<div><h3>${side}: records around it</h3><ol class="records">${sides[side].map((record) => html`<li class=${record.offset === (side === "source" ? source : target) ? "here" : ""}><b>${formatCount(record.offset)}</b> ${record.key ? html`<code>${record.key.text}</code> ` : null}<span>${record.value ? record.value.text.slice(0, 120) : "no value"}</span></li>`)}</ol>${sides[side].length ? null : html`<p class="quiet">No record there.</p>`}</div>`)}</div>`;
}

// A value with the part that differs marked; what is equal is not marked.
function Value({ parts, size, first, isEqual }) {
  if (!parts) return html`<td class="quiet">no value</td>`;
  const [before, different, after] = parts;
  const shown = parts.join("").length;
  return html`<td><code class="value">${first ? "…" : ""}${before}${isEqual ? different : different ? html`<mark>${different}</mark>` : html`<mark class="nothing" title="nothing here">∅</mark>`}${after}</code>${size > shown && size > 1000 ? html`<br /><span class="quiet">${formatCount(size)} bytes</span>` : null}</td>`;
}
