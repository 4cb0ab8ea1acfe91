// The life of one message: swim lanes from the producer to the consumers. `lifemodel.js` has the rules.

import { html, useEffect, useState } from "./vendor.js";
import { getJson } from "./api.js";
import { formatClock, formatCount, formatLinks, formatUs } from "./format.js";
import { checkMessage } from "./choices.js";
import { faultBands, findLastSeen, lifeEvents, lifeLanes, lifeRange, neighbourWays, placeEvents, placeLabels } from "./lifemodel.js";
import { DataTable, Notes, Problem } from "./parts.js";
import { buildAddress } from "./router.js";

// A phone gets a narrower picture, so that its text stays readable.
const [LIFE_WIDTH, LANE_HEIGHT, LABEL_WIDTH, TOP] = [innerWidth < 500 ? 470 : 900, 56, innerWidth < 500 ? 100 : 130, 44];

const LABEL_OFFSET = { above: -11, below: 20, beside: 4 };

export function Life({ address }) {
  const [life, setLife] = useState(null);
  const [problem, setProblem] = useState("");
  const { topic, producer, lane, sequence } = address.query;
  const notes = checkMessage(address.query);
  useEffect(() => {
    setLife(null);
    setProblem("");
    if (notes.length) return;
    const query = new URLSearchParams({ topic, producer, lane, sequence });
    getJson(`runs/${encodeURIComponent(address.name)}/life?${query}`).then(setLife, (error) => setProblem(error.message));
  }, [topic, producer, lane, sequence]);
  return html`<main>
    <p><a href="#/">All runs</a> › <a href=${buildAddress("run", address.name)}>${address.name}</a></p>
    <h1>${notes.length ? "A message" : `Message ${sequence} of lane ${lane}`}</h1>
    ${notes.length ? html`<${Notes} notes=${[`${notes.join(" ")} Follow a message from the findings of a run.`]} />` : html`<p class="quiet">topic ${topic}, producer ${producer}</p>`}
    ${problem ? html`<${Problem} text=${problem} />` : null}
    ${!life && !problem && !notes.length ? html`<p class="quiet" role="status">Reading the ledgers…</p>` : null}
    ${life ? html`<p class="sentence big">${formatLinks(life.sentence)}</p><${SwimLanes} life=${life} /><${LifeTable} life=${life} /><${Neighbours} life=${life} address=${address} />` : null}
  </main>`;
}

function SwimLanes({ life }) {
  const lanes = lifeLanes(life);
  const range = lifeRange(life);
  const [left, right] = [LABEL_WIDTH + 12, LIFE_WIDTH - 20];
  const placed = placeEvents(lifeEvents(life), range, left, right);
  const x = (t) => left + ((right - left) * (t - range[0])) / (range[1] - range[0]);
  const y = (id) => TOP + LANE_HEIGHT * Math.max(0, lanes.findIndex((lane) => lane.id === id));
  const lost = findLastSeen(life);
  const last = lost && placed.filter((event) => event.lane === lost.after).pop();
  const height = TOP + LANE_HEIGHT * lanes.length - 16;
  const byId = new Map(placed.map((event) => [event.id, event]));
  const label = `${life.sentence} ${lost ? `Not seen after: ${laneName(lanes, lost.after)}.` : ""}`;
  return html`<figure class="life"><svg viewBox="0 0 ${LIFE_WIDTH} ${height}" role="img" aria-label=${label}>
    <clipPath id="life-plot"><rect x=${left - 8} y="0" width=${right - left + 16} height=${height} /></clipPath>
    ${faultBands(life, range).map((band, place) => html`<rect class="fault" x=${x(band.from)} y="0" width=${Math.max(2, x(band.to) - x(band.from))} height=${height} /><text class="small" x=${Math.min(x(band.from) + 4, right - 90)} y=${13 + 13 * place}>${formatLinks(band.text)}</text>`)}
    ${lanes.map((lane) => html`<line class="grid" x1=${left - 8} x2=${right + 8} y1=${y(lane.id)} y2=${y(lane.id)} /><text x="0" y=${y(lane.id) + (lane.note ? -2 : 4)}>${lane.name}</text><text class="small" x="0" y=${y(lane.id) + 13}>${shortenNote(lane.note)}</text>`)}
    <g clip-path="url(#life-plot)">${neighbourWays(life, lanes).map((way) => html`<${NeighbourWay} way=${way} x=${x} y=${y} />`)}</g>
    ${placed.filter((event) => byId.has(event.from)).map((event) => html`<line class="path" x1=${byId.get(event.from).x} y1=${y(byId.get(event.from).lane)} x2=${event.x} y2=${y(event.lane)} />`)}
    ${last ? html`<line class="missing" x1=${last.x} y1=${y(last.lane)} x2=${ringPlace(last, left, right)} y2=${y(lost.lane)} />` : null}
    ${placed.map((event) => html`<circle class=${event.t === null ? "event undated" : "event"} cx=${event.x} cy=${y(event.lane)} r="6"><title>${describeEvent(event)}</title></circle>`)}
    ${placeLabels(placed, LIFE_WIDTH - 10).map((event) => html`<text class="small" x=${event.x + (event.side === "beside" ? 11 : event.isLeft ? 4 : -4)} y=${y(event.lane) + LABEL_OFFSET[event.side]} text-anchor=${event.isLeft ? "end" : "start"}>${event.label}</text>`)}
    ${lost ? html`<circle class="unseen" cx=${ringPlace(last, left, right)} cy=${y(lost.lane)} r="9" /><${RingLabel} x=${ringPlace(last, left, right)} y=${y(lost.lane)} right=${right} />` : null}
  </svg><figcaption>Filled: recorded, at its time. Dashed: recorded without a time, placed in order. Hollow ring: not seen after this. Faint: messages before and after it in its lane.${life.faults.length ? " Behind: the fault that was active." : ""}</figcaption></figure>`;
}

function RingLabel({ x, y, right }) {
  const isLeft = x > right - 140;
  return html`<text class="small lost" x=${x + (isLeft ? -14 : 14)} y=${y + 4} text-anchor=${isLeft ? "end" : "start"}>not seen after this</text>`;
}

// A little after where it was seen last.
function ringPlace(last, left, right) {
  return Math.min(right - 4, (last ? last.x : left) + 60);
}

// A faint line from when a neighbour was due to when it was received; a ring where it stayed.
function NeighbourWay({ way, x, y }) {
  const title = html`<title>message ${way.sequence}</title>`;
  if (way.to !== null) return html`<line class="neighbour" x1=${x(way.from)} y1=${y("producer")} x2=${x(way.to)} y2=${y(way.lane)}>${title}</line>`;
  return html`<line class="neighbour" x1=${x(way.from)} y1=${y("producer")} x2=${x(way.from) + 24} y2=${y(way.lane)}>${title}</line><circle class="neighbour" cx=${x(way.from) + 24} cy=${y(way.lane)} r="4" />`;
}

function laneName(lanes, id) {
  return (lanes.find((lane) => lane.id === id) || lanes[0]).name;
}

function shortenNote(text) {
  const most = Math.floor(LABEL_WIDTH / 6.6);
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function describeEvent(event) {
  return `${event.lane}: ${event.what}${event.t === null ? ", time not recorded" : ` at ${formatClock(event.t)}`}`;
}

function LifeTable({ life }) {
  const start = life.intended_us ?? life.sent_us;
  const lanes = lifeLanes(life);
  const rows = lifeEvents(life).map((event) => [event.lane.startsWith("group ") ? event.lane : laneName(lanes, event.lane), event.what, event.t === null ? "not recorded" : formatClock(event.t), event.t === null || start === null ? "–" : formatUs(event.t - start)]);
  const faults = life.faults.map((fault) => [fault.name, formatLinks(fault.target), fault.began_us ? formatClock(fault.began_us) : "–"].filter(Boolean).join(" "));
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
