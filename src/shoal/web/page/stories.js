// The order of events: of a traced cluster, and three saved stories that come with the page.

import { html, useEffect, useState } from "./vendor.js";
import { getJson } from "./api.js";
import { chooseOne } from "./choices.js";
import { Notes, Problem } from "./parts.js";
import { buildAddress, replaceQuery } from "./router.js";
import { SpaceTime } from "./spacetime.js";

const TRACE_EVERY_MS = 3000;

export function Stories({ address }) {
  const { story } = address.query;
  return html`<main><p><a href="#/">All runs</a></p><h1>What happens before what</h1>
    <p>Three stories of a Kafka Lite with three brokers, as its nodes recorded them: a line for each node, a dot for each event, an edge for each message that made one event depend on another. Choose an event to see what may have caused it, and what it may have caused.</p>
    <${SavedStories} chosen=${story} onChoose=${(name) => replaceQuery(address, { story: name })} /></main>`;
}

function SavedStories({ chosen, onChoose }) {
  const [stories, setStories] = useState(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    fetch("/stories.json").then((answer) => answer.json()).then((found) => setStories(found.stories), (error) => setProblem(error.message));
  }, []);
  if (problem) return html`<${Problem} text=${problem} />`;
  if (!stories) return html`<p class="quiet">Loading…</p>`;
  const { value, notes } = chooseOne(chosen, stories.map((each) => each.name), { what: "story", fallback: "choose one" });
  const shown = stories.find((each) => each.name === value);
  return html`<${Notes} notes=${notes} /><p class="filter">${stories.map((each) => html`<button type="button" aria-pressed=${each.name === chosen} onClick=${() => onChoose(each.name === chosen ? "" : each.name)}>${each.title}</button>`)}</p>
    ${shown ? html`<p>${shown.text}</p><${SpaceTime} key=${shown.name} hosts=${shown.hosts} events=${shown.events} label=${shown.title} />` : null}`;
}

// The trace of a cluster, of the brushed time or of the last events.
export function ClusterTrace({ id, isAlive, window }) {
  const [trace, setTrace] = useState(null);
  useEffect(() => {
    let timer = null;
    const ask = async () => {
      const found = document.hidden ? null : await getJson(`trace?thing=${encodeURIComponent(id)}`).catch(() => null);
      if (found) setTrace(found);
      if (isAlive && (!found || found.hosts.length)) timer = setTimeout(ask, TRACE_EVERY_MS);
    };
    ask();
    return () => clearTimeout(timer);
  }, [id, isAlive]);
  return html`<section aria-labelledby="order"><h2 id="order">Order of events</h2>
    ${trace && trace.hosts.length
      ? html`<p class="quiet">${window ? "In the chosen time." : "The last events."} Choose one to see what may have caused it.</p><${SpaceTime} hosts=${trace.hosts} events=${trace.events} range=${window} most=${window ? 150 : 40} label="Order of events" />`
      : html`<p class="quiet">This cluster is not traced: start it with <code>--trace</code> to see what happened before what.</p>`}
    <p><a href=${buildAddress("stories", "", { story: "election" })}>Three saved stories</a>: the first leaders, an election, a write.</p></section>`;
}
