// The life of one message: swim lanes from the producer to the consumers.

import { html, useEffect, useState } from "./vendor.js";
import { getJson } from "./api.js";
import { formatClock, formatCount, formatUs } from "./format.js";
import { DataTable, Problem } from "./parts.js";
import { buildAddress } from "./router.js";

// A phone gets a narrower picture, so that its text stays readable.
const [LIFE_WIDTH, LANE_HEIGHT, LABEL_WIDTH] = [innerWidth < 500 ? 470 : 900, 56, innerWidth < 500 ? 100 : 130];

export function Life({ address }) {
  const [life, setLife] = useState(null);
  const [problem, setProblem] = useState("");
  const { topic, producer, lane, sequence } = address.query;
  useEffect(() => {
    setLife(null);
    setProblem("");
    const query = new URLSearchParams({ topic, producer, lane, sequence });
    getJson(`runs/${encodeURIComponent(address.name)}/life?${query}`).then(setLife, (error) => setProblem(error.message));
  }, [topic, producer, lane, sequence]);
  return html`<main>
    <p><a href="#/">All runs</a> › <a href=${buildAddress("run", address.name)}>${address.name}</a></p>
    <h1>Message ${sequence} of lane ${lane}</h1>
    <p class="quiet">topic ${topic}, producer ${producer}</p>
    ${problem ? html`<${Problem} text=${problem} />` : null}
    ${!life && !problem ? html`<p class="quiet" role="status">Reading the ledgers…</p>` : null}
    ${life ? html`<p class="sentence big">${life.sentence}</p><${SwimLanes} life=${life} /><${LifeTable} life=${life} /><${Neighbours} life=${life} address=${address} />` : null}
  </main>`;
}

// The recorded events in order: {lane, what, t}; t is null where no time was recorded.
export function lifeEvents(life) {
  const events = [
    { lane: "producer", what: "due", t: life.intended_us },
    { lane: "producer", what: "sent", t: life.sent_us },
    ...life.source.map((place) => ({ lane: "source log", what: `partition ${place.partition}, offset ${place.offset}`, t: place.append_us, isLog: true })),
    { lane: "producer", what: `acknowledged (${life.outcome})`, t: life.acknowledged_us },
    ...life.target.map((place) => ({ lane: "target log", what: `partition ${place.partition}, offset ${place.offset}`, t: place.append_us, isLog: true })),
    ...life.polls.map((poll) => ({ lane: `group ${poll.group}`, what: `received from partition ${poll.partition}, offset ${poll.offset}`, t: poll.received_us })),
  ];
  return events.filter((event) => event.isLog || event.t !== null);
}

function listLanes(life) {
  const groups = [...new Set(life.polls.map((poll) => `group ${poll.group}`))];
  const hasTarget = life.target.length || life.has_target;
  return ["producer", "source log", ...(hasTarget ? ["target log"] : []), ...(groups.length ? groups : ["consumers"])];
}

function SwimLanes({ life }) {
  const lanes = listLanes(life);
  const placed = placeEvents(lifeEvents(life));
  const y = (lane) => 30 + LANE_HEIGHT * Math.max(0, lanes.indexOf(lane));
  const lost = findLastSeen(life, lanes);
  const last = lost && placed.filter((event) => event.lane === lost.after).pop();
  const height = 10 + LANE_HEIGHT * lanes.length;
  const label = `${life.sentence} ${lost ? `Not seen after: ${lost.after}.` : ""}`;
  return html`<figure class="life"><svg viewBox="0 0 ${LIFE_WIDTH} ${height}" role="img" aria-label=${label}>
    ${lanes.map((lane) => html`<line class="grid" x1=${LABEL_WIDTH} x2=${LIFE_WIDTH - 10} y1=${y(lane)} y2=${y(lane)} /><text x="0" y=${y(lane) + 4}>${lane}</text>`)}
    <polyline class="path" points=${placed.map((event) => `${event.x},${y(event.lane)}`).join(" ")} />
    ${placed.map((event) => html`<circle class=${event.t === null ? "event undated" : "event"} cx=${event.x} cy=${y(event.lane)} r="6"><title>${describeEvent(event)}</title></circle>`)}
    ${placed.map((event, place) => html`<text class="small" x=${event.x} y=${y(event.lane) + (place % 2 ? 20 : -12)} text-anchor=${event.x > LIFE_WIDTH - 150 ? "end" : "start"}>${event.isLog ? event.what.split(", ")[1] : event.what.split(" ")[0]}</text>`)}
    ${last ? html`<line class="missing" x1=${last.x} y1=${y(lost.after)} x2=${LIFE_WIDTH - 60} y2=${y(lost.lane)} />` : null}
    ${lost ? html`<circle class="unseen" cx=${LIFE_WIDTH - 60} cy=${y(lost.lane)} r="9" /><text class="small lost" x=${LIFE_WIDTH - 74} y=${y(lost.lane) - 14} text-anchor="end">not seen after this</text>` : null}
  </svg><figcaption>Filled: recorded, at its time. Dashed: recorded without a time, placed in order. Hollow ring: not seen after this.</figcaption></figure>`;
}

// The first lane that the message did not reach; null if a consumer received it.
function findLastSeen(life, lanes) {
  if (life.polls.length) return null;
  const reached = { source: "source log", target: "target log" }[life.last_stage] || "producer";
  const next = lanes[Math.min(lanes.length - 1, lanes.indexOf(reached) + 1)];
  return { lane: next, after: reached };
}

// Times become places; what has no time is put between its neighbours.
function placeEvents(events) {
  const times = events.map((event) => event.t).filter((t) => t !== null);
  const [low, high] = [Math.min(...times), Math.max(...times)];
  const width = LIFE_WIDTH - LABEL_WIDTH - 110;
  const placed = events.map((event) => ({ ...event, x: event.t === null ? null : LABEL_WIDTH + 20 + (high > low ? (width * (event.t - low)) / (high - low) : 0) }));
  placed.forEach((event, place) => {
    if (event.x !== null) return;
    const before = placed.slice(0, place).reverse().find((each) => each.x !== null);
    const after = placed.slice(place + 1).find((each) => each.t !== null);
    const left = before ? before.x : LABEL_WIDTH + 20;
    event.x = after && after.x > left ? (left + after.x) / 2 : left + 40;
  });
  return placed;
}

function describeEvent(event) {
  return `${event.lane}: ${event.what}${event.t === null ? ", time not recorded" : ` at ${formatClock(event.t)}`}`;
}

function LifeTable({ life }) {
  const start = life.intended_us ?? life.sent_us;
  const rows = lifeEvents(life).map((event) => [event.lane, event.what, event.t === null ? "not recorded" : formatClock(event.t), event.t === null || start === null ? "–" : formatUs(event.t - start)]);
  const faults = life.faults.map((fault) => [fault.name, fault.target, fault.began_us ? formatClock(fault.began_us) : "–"].filter(Boolean).join(" "));
  return html`<${DataTable} caption="events of this message" columns=${["where", "what", "time (UTC)", "after it was due"]} rows=${rows} />
    ${faults.length ? html`<p>Faults at that time: ${faults.join("; ")}.</p>` : null}`;
}

function Neighbours({ life, address }) {
  if (!life.neighbours.length) return null;
  const link = (sequence) => buildAddress("life", address.name, { ...address.query, sequence });
  return html`<section aria-labelledby="neighbours"><h2 id="neighbours">Messages before and after it in this lane</h2>
    <div class="scroll" tabindex="0" role="region" aria-label="table: neighbours"><table>
      <thead><tr><th scope="col">sequence</th><th scope="col">came to</th><th scope="col">due</th><th scope="col">received</th></tr></thead>
      <tbody>${life.neighbours.map((each) => html`<tr><td><a href=${link(each.sequence)}>${formatCount(each.sequence)}</a></td><td>${each.last_stage}</td><td>${each.intended_us ? formatClock(each.intended_us) : "–"}</td><td>${each.received_us ? formatClock(each.received_us) : "–"}</td></tr>`)}</tbody>
    </table></div></section>`;
}
