/** Calls of the public API. Every failure is an ApiError with a sentence for people. */

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly hint = '',
    readonly reason = '',
    readonly details: readonly string[] = [],
    readonly body: unknown = null,
  ) {
    super(message);
  }

  /** This frontend has no such route: it is older than the page, or the route is not built yet. */
  get absent(): boolean {
    return this.status === 404 && this.reason === 'no_such_endpoint';
  }
}

export const UNREACHABLE = 0;

type Query = Record<string, string | number | boolean | undefined>;

export function get<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  const asked = Object.entries(query).filter(([, value]) => value !== undefined && value !== '');
  const text = new URLSearchParams(asked.map(([key, value]) => [key, String(value)])).toString();
  return call<T>('GET', text ? `${path}?${text}` : path, undefined, {}, signal);
}

export function post<T>(path: string, body?: unknown): Promise<T> {
  return call<T>('POST', path, body);
}

export function put<T>(path: string, body: unknown, headers: Record<string, string> = {}): Promise<T> {
  return call<T>('PUT', path, body, headers);
}

export function patch<T>(path: string, body: unknown): Promise<T> {
  return call<T>('PATCH', path, body);
}

export function remove<T>(path: string): Promise<T> {
  return call<T>('DELETE', path);
}

/** A request that the frontend itself has proposed. */
export function send(method: string, path: string, body?: unknown): Promise<unknown> {
  return call(method, path, body);
}

/** A segment of a path; slashes in names of models stay. */
export function segment(name: string): string {
  return encodeURIComponent(name);
}

export function consoleHeaders(method: string): Record<string, string> {
  return method === 'GET' ? {} : { 'X-Remuda-Console': '1' };
}

async function call<T>(
  method: string,
  path: string,
  body?: unknown,
  headers: Record<string, string> = {},
  signal?: AbortSignal,
): Promise<T> {
  const asked: RequestInit = { method, headers: { ...consoleHeaders(method), ...headers }, signal: signal ?? null };
  if (body !== undefined) {
    asked.body = JSON.stringify(body);
    asked.headers = { ...asked.headers, 'Content-Type': 'application/json' };
  }
  let response: Response;
  try {
    response = await fetch(path, asked);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(UNREACHABLE, 'The frontend does not answer.', 'Is it running, and does the network reach it?');
  }
  if (!response.ok) throw await problemOf(response);
  const text = await response.text();
  return (text ? JSON.parse(text) : null) as T;
}

/** What an answer with an error status says, in whichever of the API's shapes. */
export async function problemOf(response: Response): Promise<ApiError> {
  const text = await response.text().catch(() => '');
  let body: unknown = null;
  try {
    body = JSON.parse(text);
  } catch {
    return new ApiError(response.status, text.slice(0, 300) || `The frontend answered ${response.status}.`);
  }
  const error = (body as { error?: unknown } | null)?.error;
  if (typeof error === 'string') return new ApiError(response.status, error, '', '', [], body);
  const told = (error ?? {}) as { message?: string; hint?: string; reason?: string; code?: unknown; details?: string[] };
  const reason = told.reason ?? (typeof told.code === 'string' ? told.code : '');
  const message = told.message || `The frontend answered ${response.status}.`;
  return new ApiError(response.status, message, told.hint ?? '', reason, told.details ?? [], body);
}

export function sentence(error: unknown): string {
  if (error instanceof ApiError) return error.hint && !error.message.includes(error.hint) ? `${error.message} (${error.hint})` : error.message;
  return error instanceof Error ? error.message : String(error);
}
