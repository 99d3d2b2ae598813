// Asking the server. Nothing else is ever asked.

export const store = { state: null, shown: "a", token: sessionStorage.getItem("nearfar-token") };

export class Problem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
    this.title = { 0: "The server does not answer", 401: "The token is needed", 409: "Nothing to show", 413: "The picture is too large", 415: "This type is not read", 422: "This picture cannot be read", 429: "Too fast", 503: "The server is busy" }[status];
  }
}

function address(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined);
  return `/api/${path}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

async function ask(path, parameters, options = {}, patience = 3) {
  let answer;
  try {
    answer = await fetch(address(path, parameters), { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "Is nearfar serve still running? The page works on as soon as it answers again.");
  }
  if ((answer.status === 429 || answer.status === 503) && patience > 0) {
    const seconds = Math.min(Number(answer.headers.get("Retry-After")) || 1, 10);
    await new Promise((done) => setTimeout(done, 1000 * seconds));
    return ask(path, parameters, options, patience - 1);
  }
  const content = answer.status === 204 ? null : await answer.json().catch(() => null);
  options.signal?.throwIfAborted(); // also while the answer was read, which then is not JSON
  if (!answer.ok) throw new Problem(answer.status, content?.detail ?? `The server answered ${answer.status}.`);
  return content;
}

export const get = (path, parameters = {}, signal = undefined) => ask(path, parameters, { signal });

export const sendPicture = (path, parameters, picture, { signal, write = false } = {}) =>
  ask(path, parameters, { method: "POST", body: picture, signal, headers: { "Content-Type": picture.type || "application/octet-stream", ...(write ? bearer() : {}) } });

export const remove = (path) => ask(path, {}, { method: "DELETE", headers: bearer() });

const bearer = () => ({ Authorization: `Bearer ${store.token ?? ""}` });

/** Whether a token is the right one; it is kept until the tab is closed. */
export async function unlock(token) {
  await ask("access", {}, { headers: { Authorization: `Bearer ${token}` } }, 0);
  store.token = token;
  sessionStorage.setItem("nearfar-token", token);
}

export const picture = (run, item, side) => address(`runs/${run}/items/${item}/picture`, { side });
export const runOf = (key) => store.state.runs.find((run) => run.key === key);
export const several = () => store.state.runs.length > 1;
/** The run of views that show one at a time. */
export const oneRun = () => (store.shown === "b" ? "b" : "a");
/** The runs that a search asks. */
export const searched = () => (store.shown === "both" ? ["a", "b"] : [oneRun()]);
