/** What a status means for whom it concerns: fine, at work, look at it, broken, at rest. */
export type Tone = 'ok' | 'busy' | 'warn' | 'bad' | 'idle';
