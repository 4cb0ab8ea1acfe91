// The picture of one message's life: lanes, events, edges between them, and their places. Pure.
// Times are microseconds since the Unix epoch.

const PAD = 0.05;
const MOST_WIDER = 0.6;

// From top to bottom: {id, name, note}. A lane whose brokers were not recorded has no note.
export function lifeLanes(life) {
  const groups = [...new Set(life.polls.map((poll) => poll.group))];
  const { source, target } = life.replicas || {};
  const followers = followersOf(source);
  const hasTarget = life.target.length > 0 || life.has_target;
  return [
    { id: "producer", name: "producer", note: life.producer },
    { id: "source", name: "source leader", note: source ? `broker ${source.leader}` : "" },
    ...(followers.length ? [{ id: "followers", name: "followers", note: `in sync: ${followers.join(", ")}` }] : []),
    ...(hasTarget ? [{ id: "mirror", name: "mirror", note: "" }, { id: "target", name: "target leader", note: target ? `broker ${target.leader}` : "" }] : []),
    ...(groups.length ? groups.map((group) => ({ id: `group ${group}`, name: "consumer", note: `group ${group}` })) : [{ id: "consumers", name: "consumer", note: "" }]),
  ];
}

// Who was in sync beside the leader when the message was sent.
function followersOf(replicas) {
  return replicas ? replicas.in_sync.filter((broker) => broker !== replicas.leader) : [];
}

// What is recorded, in order: {id, lane, what, label, t, from}; t is null where no time was recorded,
// `from` is the event before it on the way of the message.
export function lifeEvents(life) {
  const followers = followersOf((life.replicas || {}).source);
  // With acks=all the leader answers when all replicas in sync have the message.
  const isReplicated = followers.length > 0 && life.acks === -1 && life.acknowledged_us !== null;
  const sent = life.sent_us === null ? "due" : "sent";
  const inLog = (cluster, from) => life[cluster].map((place, at) => ({ id: `${cluster} ${at}`, lane: cluster, what: `partition ${place.partition}, offset ${place.offset}`, label: `offset ${place.offset}`, t: place.append_us, from, isKept: true }));
  const wasInSource = life.source.length ? "source 0" : sent;
  const read = life.target.length ? "target" : "source";
  const logOf = (poll) => {
    const at = life[read].findIndex((place) => place.partition === poll.partition && place.offset === poll.offset);
    return life[read].length ? `${read} ${Math.max(0, at)}` : sent;
  };
  const events = [
    { id: "due", lane: "producer", what: "due", label: "due", t: life.intended_us, from: null },
    { id: "sent", lane: "producer", what: "sent", label: "sent", t: life.sent_us, from: "due" },
    ...inLog("source", sent),
    ...(isReplicated ? [{ id: "followers", lane: "followers", what: `in-sync followers ${followers.join(", ")} have it (acks=all)`, label: "replicated", t: null, from: wasInSource, isKept: true }] : []),
    { id: "acknowledged", lane: "producer", what: `acknowledged (${life.outcome})`, label: "acknowledged", t: life.acknowledged_us, from: isReplicated ? "followers" : wasInSource },
    ...(life.target.length ? [{ id: "mirror", lane: "mirror", what: "copied", label: "copied", t: null, from: wasInSource, isKept: true }] : []),
    ...inLog("target", "mirror"),
    ...life.polls.map((poll, at) => ({ id: `poll ${at}`, lane: `group ${poll.group}`, what: `received from partition ${poll.partition}, offset ${poll.offset}`, label: "received", t: poll.received_us, from: logOf(poll) })),
  ];
  return events.filter((event) => event.isKept || event.t !== null);
}

// The first lane that the message did not reach, and the last one that it did; null if it arrived.
export function findLastSeen(life) {
  if (life.polls.length || life.last_stage === "unknown") return null;
  const hasTarget = life.target.length > 0 || life.has_target;
  if (life.last_stage === "target") return { after: "target", lane: "consumers" };
  if (life.last_stage === "source") return { after: "source", lane: hasTarget ? "mirror" : "consumers" };
  return { after: "producer", lane: "source" };
}

// The times that the picture shows: those of the message, and those of its neighbours as far as they
// do not make it small. If it did not arrive, they show when it should have, and all are shown.
export function lifeRange(life) {
  const own = numbersOf(lifeEvents(life).map((event) => event.t));
  const others = numbersOf(life.neighbours.flatMap((each) => [each.intended_us, each.received_us]));
  if (!own.length && !others.length) return [0, 1];
  const [first, last] = own.length ? [Math.min(...own), Math.max(...own)] : [Math.min(...others), Math.max(...others)];
  const most = life.polls.length ? (last - first) * MOST_WIDER : Infinity;
  const low = Math.max(Math.min(first, ...others), first - most);
  const high = Math.min(Math.max(last, ...others), last + most);
  const pad = Math.max(1, (high - low) * PAD);
  return [low - pad, high + pad];
}

function numbersOf(times) {
  return times.filter((t) => typeof t === "number");
}

// Events with `x` between `left` and `right`; what has no time is put between its neighbours.
export function placeEvents(events, range, left, right) {
  const x = (t) => left + ((right - left) * (t - range[0])) / (range[1] - range[0]);
  const placed = events.map((event) => ({ ...event, x: event.t === null ? null : x(event.t) }));
  placed.forEach((event, place) => {
    if (event.x !== null) return;
    const before = placed.slice(0, place).reverse().find((each) => each.x !== null);
    const after = placed.slice(place + 1).find((each) => each.t !== null);
    const from = before ? before.x : left;
    event.x = Math.min(right, after && after.x > from ? (from + after.x) / 2 : from + 40);
  });
  return placed;
}

// Where the labels of events stand: above or below their lane, or beside the last event of it; those
// without room have none.
export function placeLabels(placed, width) {
  const free = new Map();
  return [...placed].sort((a, b) => a.x - b.x).flatMap((event) => {
    const side = ["above", "below"].find((each) => (free.get(`${event.lane} ${each}`) ?? -Infinity) <= event.x);
    if (!side) {
      const end = event.x + 12 + event.label.length * 7;
      const isLast = placed.every((other) => other === event || other.lane !== event.lane || other.x <= event.x);
      return isLast && end <= width ? [{ ...event, side: "beside", isLeft: false }] : [];
    }
    const isLeft = event.x + event.label.length * 7 > width;
    free.set(`${event.lane} ${side}`, isLeft ? Infinity : event.x + event.label.length * 7 + 6);
    return [{ ...event, side, isLeft }];
  });
}

// Faults that were active, cut to the range: {text, from, to}.
export function faultBands(life, range) {
  return life.faults.map((fault) => ({
    text: [fault.name, fault.target].filter(Boolean).join(" "),
    from: Math.max(range[0], fault.began_us),
    to: Math.min(range[1], fault.ended_us ?? range[1]),
  })).filter((band) => band.to > band.from);
}

// The ways of the messages before and after it: {sequence, from, to, lane}; `to` is null where one
// was not received, and `lane` the last that it reached.
export function neighbourWays(life, lanes) {
  const known = new Set(lanes.map((lane) => lane.id));
  const last = lanes[lanes.length - 1].id;
  return life.neighbours.filter((each) => each.intended_us !== null).map((each) => {
    const lane = each.last_stage === "received" ? last : known.has(each.last_stage) ? each.last_stage : "producer";
    return { sequence: each.sequence, from: each.intended_us, to: each.received_us, lane };
  });
}
