/** The store that pages read: entities, and how sure one can be of them. */
import { Connection, type Link, type Message } from './connection';
import { changed, fromSnapshot, NOTHING, type Entities } from './state';

type Word = 'restart' | 'forget';

/** How long a model that was added here is waited for. */
const EXPECTED_MS = 15_000;

class Live {
  entities = $state.raw<Entities>(NOTHING);
  link = $state.raw<Link>({ state: 'connecting', sinceMs: Date.now(), asOfMs: 0, reason: '' });
  /** Whether there has been a snapshot: until then a list that is empty means nothing. */
  known = $state(false);
  /** How often the connection has come back: what could not be had meanwhile is asked for again. */
  returns = $state(0);
  /** Models added here that the stream has not told of yet. */
  expected = $state.raw<ReadonlySet<string>>(new Set());
  #say: (word: Word) => void = () => undefined;

  expect(model: string): void {
    if (this.entities.models.has(model)) return;
    this.expected = new Set(this.expected).add(model);
    setTimeout(() => this.#met([model]), EXPECTED_MS);
  }

  #met(models: readonly string[]): void {
    if (models.length) this.expected = new Set([...this.expected].filter((one) => !models.includes(one)));
  }

  start(): void {
    this.#say = 'SharedWorker' in window ? this.#viaWorker() : this.#viaLock();
    window.addEventListener('online', () => this.restart());
  }

  restart(): void {
    this.#say('restart');
  }

  forget(): void {
    this.known = false;
    this.#say('forget');
  }

  #take(message: Message): void {
    if (message.kind === 'snapshot') {
      this.entities = fromSnapshot(message.snapshot);
      this.known = message.snapshot.nodes !== undefined;
    } else if (message.kind === 'change') this.entities = changed(this.entities, message.change);
    else {
      if (this.link.state === 'lost' && message.link.state === 'live') this.returns += 1;
      this.link = message.link;
    }
    if (this.expected.size) this.#met([...this.expected].filter((one) => this.entities.models.has(one)));
  }

  #viaWorker(): (word: Word) => void {
    const worker = new SharedWorker(new URL('./shared.ts', import.meta.url), { type: 'module', name: 'remuda' });
    worker.port.onmessage = ({ data }: MessageEvent<Message>) => this.#take(data);
    window.addEventListener('pagehide', () => worker.port.postMessage('leave'));
    window.addEventListener('pageshow', (event) => event.persisted && location.reload());
    return (word) => worker.port.postMessage(word);
  }

  /** Where there are no shared workers, the tab that holds the lock connects and tells the others. */
  #viaLock(): (word: Word) => void {
    const channel = new BroadcastChannel('remuda-live');
    let own: Connection | null = null;
    channel.onmessage = ({ data }: MessageEvent<Message | { kind: 'word'; word: Word | 'hello' }>) => {
      if (data.kind !== 'word') this.#take(data);
      else if (own && data.word === 'hello') for (const message of own.state()) channel.postMessage(message);
      else if (own && data.word !== 'hello') own[data.word]();
    };
    void navigator.locks.request('remuda-live', async () => {
      own = new Connection((message) => {
        this.#take(message);
        channel.postMessage(message);
      });
      await own.run();
    });
    channel.postMessage({ kind: 'word', word: 'hello' });
    return (word) => (own ? own[word]() : channel.postMessage({ kind: 'word', word }));
  }
}

export const live = new Live();

/** A clock for relative times and "not connected since": one timer for the whole page. */
class Clock {
  nowMs = $state(Date.now());

  constructor() {
    setInterval(() => (this.nowMs = Date.now()), 1000);
  }
}

export const now = new Clock();
