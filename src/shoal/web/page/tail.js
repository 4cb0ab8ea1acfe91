// The live tail of a topic, which says how many records it skipped.

import { html, useEffect, useState } from "./vendor.js";
import { formatCount, plural } from "./format.js";
import { Problem } from "./parts.js";

const MOST_ROWS = 100;
const EMPTY = { rows: [], skipped: 0, problem: "", isOver: false };

export function LiveTail({ id, topics, chosen, onChoose, isAlive }) {
  const [topic, setTopic] = useState("");
  const [tail, setTail] = useState(EMPTY);
  useEffect(() => {
    setTail(EMPTY);
    if (!topic) return undefined;
    const source = new EventSource(`/api/v1/tail?${new URLSearchParams({ thing: id, topic })}`);
    const stop = (problem) => { source.close(); setTail((old) => ({ ...old, problem, isOver: true })); };
    source.addEventListener("records", (event) => setTail((old) => addRecords(old, JSON.parse(event.data))));
    source.addEventListener("problem", (event) => stop(JSON.parse(event.data).error));
    source.addEventListener("over", () => stop(""));
    source.onerror = () => stop("The tail ended: shoal serve does not answer, or has too many tails open.");
    // A hidden page gives its connection back.
    const onHidden = () => { if (document.hidden) { stop(""); setTopic(""); } };
    document.addEventListener("visibilitychange", onHidden);
    return () => { document.removeEventListener("visibilitychange", onHidden); source.close(); };
  }, [topic]);
  if (!isAlive) return null;
  const wanted = topics.includes(chosen) ? chosen : topics.find((name) => !name.startsWith("__")) || topics[0] || "";
  return html`<section aria-labelledby="tail"><h2 id="tail">Live tail of a topic</h2>
    ${topics.length ? html`<p class="filter"><label>Topic <select value=${wanted} onChange=${(event) => { setTopic(""); onChoose(event.target.value); }}>${topics.map((name) => html`<option value=${name} selected=${name === wanted}>${name}</option>`)}</select></label>
      <button type="button" onClick=${() => setTopic(topic ? "" : wanted)}>${topic ? "Stop" : "Follow"}</button></p>` : html`<p class="quiet">There is no topic yet.</p>`}
    ${tail.problem ? html`<${Problem} text=${tail.problem} />` : null}
    ${topic ? html`<p role="status">${tail.isOver ? "The tail has ended; follow it again." : tail.rows.length ? "Newest first." : "Waiting for records…"} ${tail.skipped ? html`<b>${plural(tail.skipped, "record")} skipped</b>, because more arrive than are shown.` : "Nothing skipped."}</p>` : null}
    ${topic && tail.rows.length ? html`<${TailTable} rows=${tail.rows} />` : null}</section>`;
}

function addRecords(old, found) {
  return { ...old, skipped: found.skipped, rows: [...found.records.reverse(), ...old.rows].slice(0, MOST_ROWS) };
}

function TailTable({ rows }) {
  const text = (value) => (value === null ? html`<span class="quiet">none</span>` : html`<code class="value">${value.text.slice(0, 200)}${value.cut || value.text.length > 200 ? "…" : ""}</code>`);
  return html`<div class="scroll tail" tabindex="0" role="region" aria-label="table: records"><table>
    <thead><tr>${["partition", "offset", "time (UTC)", "key", "value"].map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${`${row.partition} ${row.offset}`}><td>${row.partition}</td><td>${formatCount(row.offset)}</td><td>${row.timestamp < 0 ? "–" : new Date(row.timestamp).toISOString().slice(11, 23)}</td><td>${text(row.key)}</td><td>${text(row.value)}</td></tr>`)}</tbody></table></div>`;
}
