// Requests to the server, and its stream.

export async function getJson(path) {
  const answer = await fetch(`/api/v1/${path}`, { cache: "no-store" });
  return readAnswer(answer);
}

export async function postJson(path, body) {
  const headers = { "Content-Type": "application/json", "X-Shoal": "1" };
  return readAnswer(await fetch(`/api/v1/${path}`, { method: "POST", headers, body: JSON.stringify(body) }));
}

async function readAnswer(answer) {
  const content = await answer.json();
  if (!answer.ok) throw new Error([content.error, content.remedy].filter(Boolean).join("; "));
  return content;
}

// Follows things. A hidden page closes its stream: browsers allow six connections to a server.
// `onMessage` gets ("things" | "events", content), `onState` whether the server answers.
export function openStream({ isNow = false, positions = {}, onMessage, onState }) {
  const known = { ...positions };
  let source = null;
  let timer = null;

  function connect() {
    const query = new URLSearchParams();
    if (isNow) query.append("now", "1");
    for (const [id, position] of Object.entries(known)) {
      query.append("follow", id);
      query.append("position", position);
    }
    source = new EventSource(`/api/v1/stream?${query}`);
    source.onopen = () => onState(true);
    // Reconnect here rather than in EventSource, which would ask for the old positions.
    source.onerror = () => { disconnect(); onState(false); timer = setTimeout(connect, 2000); };
    source.addEventListener("things", (event) => onMessage("things", JSON.parse(event.data)));
    source.addEventListener("events", (event) => {
      const content = JSON.parse(event.data);
      known[content.thing] = content.position;
      onMessage("events", content);
    });
  }

  function disconnect() {
    clearTimeout(timer);
    if (source) source.close();
    source = null;
  }

  function onVisibility() {
    if (document.hidden) disconnect();
    else if (!source) connect();
  }

  document.addEventListener("visibilitychange", onVisibility);
  if (!document.hidden) connect();
  return () => {
    document.removeEventListener("visibilitychange", onVisibility);
    disconnect();
  };
}
