// The one way to the server: JSON in and out, the key, and waiting while it is busy.

const KEY = "superbloom-key";
const ATTEMPTS = 30;
const LONGEST_WAIT = 30;

export class ApiError extends Error {
  constructor(message, status, closest = {}) {
    super(message);
    this.status = status;
    this.closest = closest;
  }
}

export const key = () => sessionStorage.getItem(KEY);
export const setKey = (value) => sessionStorage.setItem(KEY, value);

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, 1000 * seconds);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

async function once(path, body, signal) {
  const headers = {};
  if (key()) headers.Authorization = `Bearer ${key()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const method = body === undefined ? "GET" : "POST";
  try {
    const response = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) });
    const text = await response.text();
    return { response, data: text ? parsed(text) : {} };
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer: is “superbloom serve” still running?", 0);
  }
}

// A proxy in between may answer with its own page.
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}

// onWait(line) reports what the call waits for, and onWait("") that the wait is over.
export async function call(path, { body, signal, onWait = () => {} } = {}) {
  for (let attempt = 1; ; attempt += 1) {
    const { response, data } = await once(path, body, signal);
    if (response.ok) {
      if (attempt > 1) onWait("");
      return data;
    }
    const message = data.error ?? `The server answered with status ${response.status}.`;
    if (response.status !== 503 || attempt === ATTEMPTS) throw new ApiError(message, response.status, data.closest);
    const seconds = Math.min(LONGEST_WAIT, Math.max(1, Number(response.headers.get("Retry-After")) || 1));
    onWait(`${message} (asking again in ${seconds} s)`);
    await pause(seconds, signal);
  }
}
