/** A file to the frontend by tus 1.0.0, continued where it was cut off, and then installed as a model. */
import { ApiError, consoleHeaders, post, problemOf } from '../api/client';
import type { Operation } from '../api/messages';

const PATH = '/api/model-uploads';
const PIECE_BYTES = 16 << 20;
const RETRIES_MAX = 5;
const RETRY_MS = 2000;

export class Upload {
  state = $state<'waiting' | 'sending' | 'failed' | 'done'>('waiting');
  sent = $state(0);
  /** Bytes per second, over the last piece. */
  rate = $state(0);
  problem = $state.raw<unknown>(null);
  /** Of the install that follows. */
  operation = $state('');
  readonly #id: string;
  #address = '';
  #attempt: AbortController | null = null;

  constructor(
    readonly file: File,
    readonly name: string,
  ) {
    this.#id = rememberedId(file);
  }

  pause(): void {
    this.#attempt?.abort();
    this.state = 'waiting';
  }

  /** Also what the frontend has of it. */
  async drop(): Promise<void> {
    this.pause();
    forgetId(this.file);
    if (this.#address && this.state !== 'done') await this.#call('DELETE', this.#address, new AbortController().signal);
  }

  async start(): Promise<void> {
    const attempt = (this.#attempt = new AbortController());
    this.state = 'sending';
    this.problem = null;
    let failures = 0;
    while (!attempt.signal.aborted) {
      const before = this.sent;
      try {
        await this.#send(attempt.signal);
        await this.#install();
        this.state = 'done';
        return;
      } catch (error) {
        if (attempt.signal.aborted) return;
        failures = this.sent > before ? 1 : failures + 1;
        if (lasts(error) || failures > RETRIES_MAX) {
          this.problem = error;
          this.state = 'failed';
          return;
        }
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
  }

  async #send(signal: AbortSignal): Promise<void> {
    this.sent = await this.#begin(signal);
    while (this.sent < this.file.size) {
      const began = performance.now();
      const piece = this.file.slice(this.sent, this.sent + PIECE_BYTES);
      const answer = await this.#call('PATCH', this.#address, signal, { 'Upload-Offset': String(this.sent), 'Content-Type': 'application/offset+octet-stream' }, piece);
      this.sent = Number(answer.headers.get('Upload-Offset') ?? this.sent + piece.size);
      this.rate = piece.size / ((performance.now() - began) / 1000);
    }
  }

  /** Announced again under its id, a file goes on where it was. */
  async #begin(signal: AbortSignal): Promise<number> {
    const metadata = `filename ${encoded(this.file.name)},upload ${encoded(this.#id)}`;
    const answer = await this.#call('POST', PATH, signal, { 'Upload-Length': String(this.file.size), 'Upload-Metadata': metadata });
    this.#address = new URL(answer.headers.get('Location') ?? PATH, location.href).pathname;
    return Number(answer.headers.get('Upload-Offset') ?? 0);
  }

  async #install(): Promise<void> {
    const body = { model: `upload:${this.#id}`, ...(this.name ? { name: this.name } : {}) };
    const answer = await post<{ operation?: Operation }>('/api/models/install', body);
    this.operation = answer.operation?.id ?? '';
    forgetId(this.file);
  }

  async #call(method: string, path: string, signal: AbortSignal, headers: Record<string, string> = {}, body?: Blob): Promise<Response> {
    const answer = await fetch(path, { method, signal, body: body ?? null, headers: { ...consoleHeaders(method), 'Tus-Resumable': '1.0.0', ...headers } });
    if (!answer.ok) throw await problemOf(answer);
    return answer;
  }
}

/** A new attempt would be refused in the same way. */
function lasts(error: unknown): boolean {
  return error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 408 && error.status !== 409;
}

function encoded(text: string): string {
  return btoa(String.fromCharCode(...new TextEncoder().encode(text)));
}

function key(file: File): string {
  return `remuda-upload ${file.name} ${file.size} ${file.lastModified}`;
}

/** The same for the same file, so that another visit goes on with it. */
function rememberedId(file: File): string {
  const known = localStorage.getItem(key(file));
  if (known) return known;
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  const id = [...bytes].map((byte) => byte.toString(16).padStart(2, '0')).join('');
  localStorage.setItem(key(file), id);
  return id;
}

function forgetId(file: File): void {
  localStorage.removeItem(key(file));
}
