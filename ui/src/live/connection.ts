/** The one connection to the stream of everything. It lives in a shared worker, or in the tab that holds the
 * lock where a browser has none. It reconnects for ever, and says how it is. */
import { EventParser, type ServerEvent } from './events';
import { changed, fromSnapshot, NOTHING, toSnapshot, type Change, type Entities, type Snapshot } from './state';

export type LinkState = 'connecting' | 'live' | 'lost' | 'signed-out' | 'absent';

export interface Link {
  state: LinkState;
  /** When it came into this state. */
  sinceMs: number;
  /** Until when what is shown was known to be so. */
  asOfMs: number;
  /** Why, in the frontend's words or the browser's. */
  reason: string;
}

export type Message =
  | { kind: 'snapshot'; snapshot: Snapshot }
  | { kind: 'change'; change: Change }
  | { kind: 'link'; link: Link };

/** A frontend sends at least a comment every 15 s: after so long the connection is dead. */
const SILENCE_MS = 35_000;
const RETRY_FIRST_MS = 500;
const RETRY_MAX_MS = 8_000;
const ABSENT_RETRY_MS = 30_000;

export class Connection {
  #entities: Entities = NOTHING;
  #known = false;
  #lastId = '';
  #link: Link = { state: 'connecting', sinceMs: Date.now(), asOfMs: 0, reason: '' };
  #attempt: AbortController | null = null;
  #wake: (() => void) | null = null;
  #failures = 0;
  readonly #tell: (message: Message) => void;

  constructor(tell: (message: Message) => void) {
    this.#tell = tell;
  }

  /** All that one who comes later has missed. */
  state(): Message[] {
    const link: Message = { kind: 'link', link: this.#link };
    return this.#known ? [{ kind: 'snapshot', snapshot: toSnapshot(this.#entities) }, link] : [link];
  }

  /** Try at once: somebody signed in, or the browser is online again. */
  restart(): void {
    this.#failures = 0;
    this.#attempt?.abort();
    this.#wake?.();
  }

  /** Signed out: nothing of what was shown may stay. */
  forget(): void {
    this.#lastId = '';
    this.#known = false;
    this.#entities = NOTHING;
    this.#tell({ kind: 'snapshot', snapshot: {} });
    this.restart();
  }

  async run(): Promise<never> {
    for (;;) {
      const waitMs = await this.#follow();
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
        setTimeout(resolve, waitMs);
      });
      this.#wake = null;
    }
  }

  /** One life of the stream; the answer is after how long to try again. */
  async #follow(): Promise<number> {
    const attempt = (this.#attempt = new AbortController());
    try {
      const headers: Record<string, string> = this.#lastId ? { 'Last-Event-ID': this.#lastId } : {};
      const response = await fetch('/api/events', { headers, signal: attempt.signal, cache: 'no-store' });
      if (response.status === 401 || response.status === 403) return this.#refused('signed-out', response);
      if (response.status === 404) return this.#refused('absent', response);
      if (!response.ok || !response.body) throw new Error(`the frontend answered ${response.status}`);
      await this.#read(response.body, attempt);
      throw new Error('the frontend ended the connection');
    } catch (error) {
      this.#failures += 1;
      const reason = attempt.signal.aborted ? String(attempt.signal.reason ?? '') : String((error as Error).message);
      this.#become('lost', reason === 'Failed to fetch' ? 'the frontend does not answer' : reason);
      const bound = Math.min(RETRY_MAX_MS, RETRY_FIRST_MS * 2 ** (this.#failures - 1));
      return bound * (0.5 + Math.random() / 2);
    }
  }

  async #refused(state: LinkState, response: Response): Promise<number> {
    await response.body?.cancel();
    if (state === 'signed-out') {
      this.#lastId = '';
      this.#known = false;
      this.#entities = NOTHING;
      this.#tell({ kind: 'snapshot', snapshot: {} });
    }
    this.#become(state, `the frontend answered ${response.status}`);
    return ABSENT_RETRY_MS;
  }

  async #read(body: ReadableStream<Uint8Array>, attempt: AbortController): Promise<void> {
    const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
    const parser = new EventParser();
    let silence: ReturnType<typeof setTimeout> | undefined;
    try {
      for (;;) {
        clearTimeout(silence);
        silence = setTimeout(() => attempt.abort('nothing was heard for 35 s'), SILENCE_MS);
        const { done, value } = await reader.read();
        if (done) return;
        this.#link.asOfMs = Date.now();
        for (const event of parser.feed(value)) this.#take(event);
      }
    } finally {
      clearTimeout(silence);
    }
  }

  #take(event: ServerEvent): void {
    if (event.id) this.#lastId = event.id;
    if (event.name === 'snapshot') {
      const snapshot = JSON.parse(event.data) as Snapshot;
      this.#entities = fromSnapshot(snapshot);
      this.#known = true;
      this.#tell({ kind: 'snapshot', snapshot });
      this.#live();
    } else if (event.name === 'change') {
      const change = JSON.parse(event.data) as Change;
      this.#entities = changed(this.#entities, change);
      this.#tell({ kind: 'change', change });
      this.#live();
    } else if (event.name === 'trouble') {
      this.#become('lost', (JSON.parse(event.data) as { message?: string }).message ?? '');
    } else if (event.name === 'well') {
      this.#live();
    }
  }

  #live(): void {
    this.#failures = 0;
    if (this.#link.state !== 'live') this.#become('live', '');
  }

  #become(state: LinkState, reason: string): void {
    const sinceMs = this.#link.state === state ? this.#link.sinceMs : Date.now();
    this.#link = { state, sinceMs, asOfMs: this.#link.asOfMs, reason };
    this.#tell({ kind: 'link', link: this.#link });
  }
}
