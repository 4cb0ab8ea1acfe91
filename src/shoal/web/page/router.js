// The address of the page: "#/run/NAME?from=1&to=2". Everything that a user can choose is in it.

export function parseAddress(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const [place, ...rest] = path.split("/");
  return {
    place: place || "home",
    name: decodeName(rest.join("/")),
    query: Object.fromEntries(new URLSearchParams(query || "")),
  };
}

// A name that is not validly encoded is taken as it stands: no run has it, and the page says so.
function decodeName(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function buildAddress(place, name = "", query = {}) {
  const chosen = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const search = new URLSearchParams(chosen).toString();
  return `#/${place === "home" ? "" : place}${name ? `/${encodeURIComponent(name)}` : ""}${search ? `?${search}` : ""}`;
}

// Changes of a filter or a zoom replace the entry in the history; a new place adds one.
export function replaceQuery(address, changes) {
  const next = buildAddress(address.place, address.name, { ...address.query, ...changes });
  history.replaceState(null, "", next);
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}

const PARTS_OF_RUN = ["source", "target", "mirror"];

// "source" of `run:NAME/source`, "run" of a whole run, which may be one of a sweep: `run:SWEEP/NAME`.
export function partOf(id) {
  const last = id.slice(id.lastIndexOf("/") + 1);
  return id.includes("/") && PARTS_OF_RUN.includes(last) ? last : "run";
}
