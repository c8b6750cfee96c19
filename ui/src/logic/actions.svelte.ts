/** What people do: calls of the API with a word about how they went, and questions before what loses something. */
import { sentence } from '../api/client';

export interface Notice {
  id: number;
  tone: 'ok' | 'bad';
  text: string;
  to?: string;
}

export interface Question {
  title: string;
  /** What will be lost, by name. */
  text: string;
  lost?: string[];
  /** What stays all the same. */
  kept?: string[];
  /** Of the button that does nothing. */
  keep?: string;
  /** The verb on the button. */
  verb: string;
  danger?: boolean;
  answer: (yes: boolean) => void;
}

const SHOWN_MS = 6000;

class Actions {
  notices = $state<Notice[]>([]);
  question = $state.raw<Question | null>(null);
  #next = 0;

  /** How many notices there were so far: later ones have this id or a higher one. */
  get said(): number {
    return this.#next;
  }

  say(tone: Notice['tone'], text: string, to?: string): void {
    const id = this.#next++;
    this.notices.push({ id, tone, text, ...(to ? { to } : {}) });
    if (this.notices.length > 4) this.notices.shift();
    if (tone === 'ok') setTimeout(() => this.drop(id), SHOWN_MS);
  }

  drop(id: number): void {
    this.notices = this.notices.filter((notice) => notice.id !== id);
  }

  /** Do it, and say what came of it. Whether it went well is the answer. */
  async run<T>(call: () => Promise<T>, done?: string | ((result: T) => string), to?: string): Promise<T | undefined> {
    try {
      const result = await call();
      if (done) this.say('ok', typeof done === 'string' ? done : done(result), to);
      return result;
    } catch (error) {
      this.say('bad', sentence(error));
      return undefined;
    }
  }

  ask(question: Omit<Question, 'answer'>): Promise<boolean> {
    return new Promise((resolve) => {
      this.question = {
        ...question,
        answer: (yes) => {
          this.question = null;
          resolve(yes);
        },
      };
    });
  }
}

export const actions = new Actions();
