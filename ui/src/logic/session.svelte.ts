/** Who is signed in here. */
import { get, post, remove, sentence, ApiError } from '../api/client';
import type { Session } from '../api/messages';
import { live } from '../live/live.svelte';

class SessionState {
  value = $state.raw<Session | null>(null);
  /** Why it could not be asked. */
  problem = $state('');

  get mayChange(): boolean {
    return this.value?.scope !== 'read';
  }

  async load(): Promise<void> {
    try {
      this.value = await get<Session>('/api/session');
      this.problem = '';
    } catch (error) {
      if (error instanceof ApiError && error.absent) this.value = { authenticated: true };
      else this.problem = sentence(error);
    }
  }

  async signIn(key: string): Promise<void> {
    await post('/api/session', { key });
    await this.load();
    live.restart();
  }

  async signOut(): Promise<void> {
    await remove('/api/session').catch(() => undefined);
    live.forget();
    await this.load();
  }
}

export const session = new SessionState();
