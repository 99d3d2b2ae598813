// Requests to the server, the only host that the page contacts.

export const store = { state: null, shown: "a", token: sessionStorage.getItem("nearfar-token") };

export class Problem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
    this.title = { 0: "The server does not answer", 401: "The token is needed", 409: "Nothing to show", 413: "The picture is too large", 415: "Unsupported file type", 422: "This picture cannot be read", 429: "Too many requests", 503: "The server is busy" }[status];
  }
}

function address(path, parameters = {}) {
  const present = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined);
  return `/api/${path}${present.length ? `?${new URLSearchParams(present)}` : ""}`;
}

async function request(path, parameters, options = {}, retries = 3) {
  let response;
  try {
    response = await fetch(address(path, parameters), { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "Is nearfar serve still running? The page continues as soon as the server answers again.");
  }
  if ((response.status === 429 || response.status === 503) && retries > 0) {
    const seconds = Math.min(Number(response.headers.get("Retry-After")) || 1, 10);
    await new Promise((done) => setTimeout(done, 1000 * seconds));
    return request(path, parameters, options, retries - 1);
  }
  const content = response.status === 204 ? null : await response.json().catch(() => null);
  options.signal?.throwIfAborted(); // an abort while reading the body makes it invalid JSON
  if (!response.ok) throw new Problem(response.status, content?.detail ?? `The server answered ${response.status}.`);
  return content;
}

export const get = (path, parameters = {}, signal = undefined) => request(path, parameters, { signal });

export const sendPicture = (path, parameters, picture, { signal, write = false } = {}) =>
  request(path, parameters, { method: "POST", body: picture, signal, headers: { "Content-Type": picture.type || "application/octet-stream", ...(write ? bearer() : {}) } });

export const remove = (path) => request(path, {}, { method: "DELETE", headers: bearer() });

const bearer = () => ({ Authorization: `Bearer ${store.token ?? ""}` });

/** Check a token and keep it until the tab is closed. */
export async function unlock(token) {
  await request("access", {}, { headers: { Authorization: `Bearer ${token}` } }, 0);
  store.token = token;
  sessionStorage.setItem("nearfar-token", token);
}

export const picture = (run, item, side) => address(`runs/${run}/items/${item}/picture`, { side });
export const runOf = (key) => store.state.runs.find((run) => run.key === key);
export const several = () => store.state.runs.length > 1;
/** The run of views that show one run. */
export const oneRun = () => (store.shown === "b" ? "b" : "a");
/** The keys of the searched runs. */
export const searched = () => (store.shown === "both" ? ["a", "b"] : [oneRun()]);
