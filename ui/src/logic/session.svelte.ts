/** Who is signed in here. */
import { get, post, remove, sentence, ApiError } from '../api/client';
import type { Session } from '../api/messages';
import { actions } from './actions.svelte';
import { live } from '../live/live.svelte';

class SessionState {
  value = $state.raw<Session | null>(null);
  /** Why it could not be asked. */
  problem = $state('');
  #leaving = false;

  /** Why one has to sign in although one had; empty for who has not been here, or has signed out. */
  ended = $state('');

  get mayChange(): boolean {
    return this.value?.scope !== 'read';
  }

  get out(): boolean {
    return this.value !== null && !this.value.authenticated;
  }

  async load(): Promise<void> {
    try {
      const found = await get<Session>('/api/session');
      if (this.value?.authenticated && !found.authenticated && !this.#leaving) this.ended = 'Your session is over: twelve hours have passed without a visit, or its key was revoked, or you signed out in another tab.';
      if (found.authenticated) this.ended = '';
      this.value = found;
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
    this.#leaving = true;
    try {
      // The sign-in first: what the pages show is gone with the connection, and they would ask for it.
      this.value = await remove<Session>('/api/session');
      live.forget();
    } catch (error) {
      actions.say('bad', `Signing out failed: ${sentence(error)}`);
    }
    await this.load();
    this.#leaving = false;
  }
}

export const session = new SessionState();
