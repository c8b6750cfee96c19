/** Sources import each other without their endings, as bundlers allow. */
import { registerHooks } from 'node:module';

registerHooks({
  resolve: (name, context, next) => next(name.startsWith('.') && !/\.[jt]s$/.test(name) ? `${name}.ts` : name, context),
});

/** What a browser and the compiler bring: state is plain here. */
Object.assign(globalThis, { $state: Object.assign((value) => value, { raw: (value) => value }), location: { pathname: '/', search: '' } });
