import { mount } from 'svelte';
import './styles/tokens.css';
import './styles/base.css';
import './styles/components.css';
import App from './App.svelte';
import { applyTheme } from './logic/theme.svelte';

applyTheme();
mount(App, { target: document.getElementById('app')! });
