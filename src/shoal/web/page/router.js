// The address of the page: "#/run/NAME?from=1&to=2". Everything that a user can choose is in it.

export function parseAddress(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const [place, ...rest] = path.split("/");
  return {
    place: place || "home",
    name: decodeURIComponent(rest.join("/")),
    query: Object.fromEntries(new URLSearchParams(query || "")),
  };
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
