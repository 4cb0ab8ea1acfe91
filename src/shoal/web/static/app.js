// preact and htm
const { h, html, render, Component, createContext, useState, useReducer, useEffect, useLayoutEffect, useRef, useImperativeHandle, useMemo, useCallback, useContext, useDebugValue, useErrorBoundary } = (() => {
var e,n,_,t,o,r,u,l={},i=[],c=/acit|ex(?:s|g|n|p|$)|rph|grid|ows|mnc|ntw|ine[ch]|zoo|^ord|itera/i;function s(e,n){for(var _ in n)e[_]=n[_];return e}function f(e){var n=e.parentNode;n&&n.removeChild(e)}function a(n,_,t){var o,r,u,l={};for(u in _)"key"==u?o=_[u]:"ref"==u?r=_[u]:l[u]=_[u];if(arguments.length>2&&(l.children=arguments.length>3?e.call(arguments,2):t),"function"==typeof n&&null!=n.defaultProps)for(u in n.defaultProps)void 0===l[u]&&(l[u]=n.defaultProps[u]);return p(n,l,o,r,null)}function p(e,t,o,r,u){var l={type:e,props:t,key:o,ref:r,__k:null,__:null,__b:0,__e:null,__d:void 0,__c:null,__h:null,constructor:void 0,__v:null==u?++_:u};return null!=n.vnode&&n.vnode(l),l}function h(e){return e.children}function d(e,n){this.props=e,this.context=n}function v(e,n){if(null==n)return e.__?v(e.__,e.__.__k.indexOf(e)+1):null;for(var _;n<e.__k.length;n++)if(null!=(_=e.__k[n])&&null!=_.__e)return _.__e;return"function"==typeof e.type?v(e):null}function y(e){var n,_;if(null!=(e=e.__)&&null!=e.__c){for(e.__e=e.__c.base=null,n=0;n<e.__k.length;n++)if(null!=(_=e.__k[n])&&null!=_.__e){e.__e=e.__c.base=_.__e;break}return y(e)}}function m(e){(!e.__d&&(e.__d=!0)&&t.push(e)&&!g.__r++||r!==n.debounceRendering)&&((r=n.debounceRendering)||o)(g)}function g(){for(var e;g.__r=t.length;)e=t.sort(function(e,n){return e.__v.__b-n.__v.__b}),t=[],e.some(function(e){var n,_,t,o,r,u;e.__d&&(r=(o=(n=e).__v).__e,(u=n.__P)&&(_=[],(t=s({},o)).__v=o.__v+1,P(u,o,t,n.__n,void 0!==u.ownerSVGElement,null!=o.__h?[r]:null,_,null==r?v(o):r,o.__h),D(_,o),o.__e!=r&&y(o)))})}function k(e,n,_,t,o,r,u,c,s,f){var a,d,y,m,g,k,x,H=t&&t.__k||i,E=H.length;for(_.__k=[],a=0;a<n.length;a++)if(null!=(m=_.__k[a]=null==(m=n[a])||"boolean"==typeof m?null:"string"==typeof m||"number"==typeof m||"bigint"==typeof m?p(null,m,null,null,m):Array.isArray(m)?p(h,{children:m},null,null,null):m.__b>0?p(m.type,m.props,m.key,null,m.__v):m)){if(m.__=_,m.__b=_.__b+1,null===(y=H[a])||y&&m.key==y.key&&m.type===y.type)H[a]=void 0;else for(d=0;d<E;d++){if((y=H[d])&&m.key==y.key&&m.type===y.type){H[d]=void 0;break}y=null}P(e,m,y=y||l,o,r,u,c,s,f),g=m.__e,(d=m.ref)&&y.ref!=d&&(x||(x=[]),y.ref&&x.push(y.ref,null,m),x.push(d,m.__c||g,m)),null!=g?(null==k&&(k=g),"function"==typeof m.type&&null!=m.__k&&m.__k===y.__k?m.__d=s=b(m,s,e):s=C(e,m,y,H,g,s),f||"option"!==_.type?"function"==typeof _.type&&(_.__d=s):e.value=""):s&&y.__e==s&&s.parentNode!=e&&(s=v(y))}for(_.__e=k,a=E;a--;)null!=H[a]&&("function"==typeof _.type&&null!=H[a].__e&&H[a].__e==_.__d&&(_.__d=v(t,a+1)),U(H[a],H[a]));if(x)for(a=0;a<x.length;a++)T(x[a],x[++a],x[++a])}function b(e,n,_){var t,o;for(t=0;t<e.__k.length;t++)(o=e.__k[t])&&(o.__=e,n="function"==typeof o.type?b(o,n,_):C(_,o,o,e.__k,o.__e,n));return n}function C(e,n,_,t,o,r){var u,l,i;if(void 0!==n.__d)u=n.__d,n.__d=void 0;else if(null==_||o!=r||null==o.parentNode)e:if(null==r||r.parentNode!==e)e.appendChild(o),u=null;else{for(l=r,i=0;(l=l.nextSibling)&&i<t.length;i+=2)if(l==o)break e;e.insertBefore(o,r),u=r}return void 0!==u?u:o.nextSibling}function x(e,n,_){"-"===n[0]?e.setProperty(n,_):e[n]=null==_?"":"number"!=typeof _||c.test(n)?_:_+"px"}function H(e,n,_,t,o){var r;e:if("style"===n)if("string"==typeof _)e.style.cssText=_;else{if("string"==typeof t&&(e.style.cssText=t=""),t)for(n in t)_&&n in _||x(e.style,n,"");if(_)for(n in _)t&&_[n]===t[n]||x(e.style,n,_[n])}else if("o"===n[0]&&"n"===n[1])r=n!==(n=n.replace(/Capture$/,"")),n=n.toLowerCase()in e?n.toLowerCase().slice(2):n.slice(2),e.l||(e.l={}),e.l[n+r]=_,_?t||e.addEventListener(n,r?S:E,r):e.removeEventListener(n,r?S:E,r);else if("dangerouslySetInnerHTML"!==n){if(o)n=n.replace(/xlink[H:h]/,"h").replace(/sName$/,"s");else if("href"!==n&&"list"!==n&&"form"!==n&&"tabIndex"!==n&&"download"!==n&&n in e)try{e[n]=null==_?"":_;break e}catch(e){}"function"==typeof _||(null!=_&&(!1!==_||"a"===n[0]&&"r"===n[1])?e.setAttribute(n,_):e.removeAttribute(n))}}function E(e){this.l[e.type+!1](n.event?n.event(e):e)}function S(e){this.l[e.type+!0](n.event?n.event(e):e)}function P(e,_,t,o,r,u,l,i,c){var f,a,p,v,y,m,g,b,C,x,H,E=_.type;if(void 0!==_.constructor)return null;null!=t.__h&&(c=t.__h,i=_.__e=t.__e,_.__h=null,u=[i]),(f=n.__b)&&f(_);try{e:if("function"==typeof E){if(b=_.props,C=(f=E.contextType)&&o[f.__c],x=f?C?C.props.value:f.__:o,t.__c?g=(a=_.__c=t.__c).__=a.__E:("prototype"in E&&E.prototype.render?_.__c=a=new E(b,x):(_.__c=a=new d(b,x),a.constructor=E,a.render=A),C&&C.sub(a),a.props=b,a.state||(a.state={}),a.context=x,a.__n=o,p=a.__d=!0,a.__h=[]),null==a.__s&&(a.__s=a.state),null!=E.getDerivedStateFromProps&&(a.__s==a.state&&(a.__s=s({},a.__s)),s(a.__s,E.getDerivedStateFromProps(b,a.__s))),v=a.props,y=a.state,p)null==E.getDerivedStateFromProps&&null!=a.componentWillMount&&a.componentWillMount(),null!=a.componentDidMount&&a.__h.push(a.componentDidMount);else{if(null==E.getDerivedStateFromProps&&b!==v&&null!=a.componentWillReceiveProps&&a.componentWillReceiveProps(b,x),!a.__e&&null!=a.shouldComponentUpdate&&!1===a.shouldComponentUpdate(b,a.__s,x)||_.__v===t.__v){a.props=b,a.state=a.__s,_.__v!==t.__v&&(a.__d=!1),a.__v=_,_.__e=t.__e,_.__k=t.__k,_.__k.forEach(function(e){e&&(e.__=_)}),a.__h.length&&l.push(a);break e}null!=a.componentWillUpdate&&a.componentWillUpdate(b,a.__s,x),null!=a.componentDidUpdate&&a.__h.push(function(){a.componentDidUpdate(v,y,m)})}a.context=x,a.props=b,a.state=a.__s,(f=n.__r)&&f(_),a.__d=!1,a.__v=_,a.__P=e,f=a.render(a.props,a.state,a.context),a.state=a.__s,null!=a.getChildContext&&(o=s(s({},o),a.getChildContext())),p||null==a.getSnapshotBeforeUpdate||(m=a.getSnapshotBeforeUpdate(v,y)),H=null!=f&&f.type===h&&null==f.key?f.props.children:f,k(e,Array.isArray(H)?H:[H],_,t,o,r,u,l,i,c),a.base=_.__e,_.__h=null,a.__h.length&&l.push(a),g&&(a.__E=a.__=null),a.__e=!1}else null==u&&_.__v===t.__v?(_.__k=t.__k,_.__e=t.__e):_.__e=w(t.__e,_,t,o,r,u,l,c);(f=n.diffed)&&f(_)}catch(e){_.__v=null,(c||null!=u)&&(_.__e=i,_.__h=!!c,u[u.indexOf(i)]=null),n.__e(e,_,t)}}function D(e,_){n.__c&&n.__c(_,e),e.some(function(_){try{e=_.__h,_.__h=[],e.some(function(e){e.call(_)})}catch(e){n.__e(e,_.__v)}})}function w(n,_,t,o,r,u,i,c){var s,a,p,h=t.props,d=_.props,y=_.type,m=0;if("svg"===y&&(r=!0),null!=u)for(;m<u.length;m++)if((s=u[m])&&(s===n||(y?s.localName==y:3==s.nodeType))){n=s,u[m]=null;break}if(null==n){if(null===y)return document.createTextNode(d);n=r?document.createElementNS("http://www.w3.org/2000/svg",y):document.createElement(y,d.is&&d),u=null,c=!1}if(null===y)h===d||c&&n.data===d||(n.data=d);else{if(u=u&&e.call(n.childNodes),a=(h=t.props||l).dangerouslySetInnerHTML,p=d.dangerouslySetInnerHTML,!c){if(null!=u)for(h={},m=0;m<n.attributes.length;m++)h[n.attributes[m].name]=n.attributes[m].value;(p||a)&&(p&&(a&&p.__html==a.__html||p.__html===n.innerHTML)||(n.innerHTML=p&&p.__html||""))}if(function(e,n,_,t,o){var r;for(r in _)"children"===r||"key"===r||r in n||H(e,r,null,_[r],t);for(r in n)o&&"function"!=typeof n[r]||"children"===r||"key"===r||"value"===r||"checked"===r||_[r]===n[r]||H(e,r,n[r],_[r],t)}(n,d,h,r,c),p)_.__k=[];else if(m=_.props.children,k(n,Array.isArray(m)?m:[m],_,t,o,r&&"foreignObject"!==y,u,i,u?u[0]:t.__k&&v(t,0),c),null!=u)for(m=u.length;m--;)null!=u[m]&&f(u[m]);c||("value"in d&&void 0!==(m=d.value)&&(m!==n.value||"progress"===y&&!m)&&H(n,"value",m,h.value,!1),"checked"in d&&void 0!==(m=d.checked)&&m!==n.checked&&H(n,"checked",m,h.checked,!1))}return n}function T(e,_,t){try{"function"==typeof e?e(_):e.current=_}catch(e){n.__e(e,t)}}function U(e,_,t){var o,r;if(n.unmount&&n.unmount(e),(o=e.ref)&&(o.current&&o.current!==e.__e||T(o,null,_)),null!=(o=e.__c)){if(o.componentWillUnmount)try{o.componentWillUnmount()}catch(e){n.__e(e,_)}o.base=o.__P=null}if(o=e.__k)for(r=0;r<o.length;r++)o[r]&&U(o[r],_,"function"!=typeof e.type);t||null==e.__e||f(e.__e),e.__e=e.__d=void 0}function A(e,n,_){return this.constructor(e,_)}function M(_,t,o){var r,u,i;n.__&&n.__(_,t),u=(r="function"==typeof o)?null:o&&o.__k||t.__k,i=[],P(t,_=(!r&&o||t).__k=a(h,null,[_]),u||l,l,void 0!==t.ownerSVGElement,!r&&o?[o]:u?null:t.firstChild?e.call(t.childNodes):null,i,!r&&o?o:u?u.__e:t.firstChild,r),D(i,_)}function F(e,n){var _={__c:n="__cC"+u++,__:e,Consumer:function(e,n){return e.children(n)},Provider:function(e){var _,t;return this.getChildContext||(_=[],(t={})[n]=this,this.getChildContext=function(){return t},this.shouldComponentUpdate=function(e){this.props.value!==e.value&&_.some(m)},this.sub=function(e){_.push(e);var n=e.componentWillUnmount;e.componentWillUnmount=function(){_.splice(_.indexOf(e),1),n&&n.call(e)}}),e.children}};return _.Provider.__=_.Consumer.contextType=_}e=i.slice,n={__e:function(e,n){for(var _,t,o;n=n.__;)if((_=n.__c)&&!_.__)try{if((t=_.constructor)&&null!=t.getDerivedStateFromError&&(_.setState(t.getDerivedStateFromError(e)),o=_.__d),null!=_.componentDidCatch&&(_.componentDidCatch(e),o=_.__d),o)return _.__E=_}catch(n){e=n}throw e}},_=0,d.prototype.setState=function(e,n){var _;_=null!=this.__s&&this.__s!==this.state?this.__s:this.__s=s({},this.state),"function"==typeof e&&(e=e(s({},_),this.props)),e&&s(_,e),null!=e&&this.__v&&(n&&this.__h.push(n),m(this))},d.prototype.forceUpdate=function(e){this.__v&&(this.__e=!0,e&&this.__h.push(e),m(this))},d.prototype.render=h,t=[],o="function"==typeof Promise?Promise.prototype.then.bind(Promise.resolve()):setTimeout,g.__r=0,u=0;var L,N,W,R=0,I=[],O=n.__b,V=n.__r,q=n.diffed,B=n.__c,$=n.unmount;function j(e,_){n.__h&&n.__h(N,e,R||_),R=0;var t=N.__H||(N.__H={__:[],__h:[]});return e>=t.__.length&&t.__.push({}),t.__[e]}function G(e){return R=1,z(ie,e)}function z(e,n,_){var t=j(L++,2);return t.t=e,t.__c||(t.__=[_?_(n):ie(void 0,n),function(e){var n=t.t(t.__[0],e);t.__[0]!==n&&(t.__=[n,t.__[1]],t.__c.setState({}))}],t.__c=N),t.__}function J(e,_){var t=j(L++,3);!n.__s&&le(t.__H,_)&&(t.__=e,t.__H=_,N.__H.__h.push(t))}function K(e,_){var t=j(L++,4);!n.__s&&le(t.__H,_)&&(t.__=e,t.__H=_,N.__h.push(t))}function Q(e){return R=5,Y(function(){return{current:e}},[])}function X(e,n,_){R=6,K(function(){"function"==typeof e?e(n()):e&&(e.current=n())},null==_?_:_.concat(e))}function Y(e,n){var _=j(L++,7);return le(_.__H,n)&&(_.__=e(),_.__H=n,_.__h=e),_.__}function Z(e,n){return R=8,Y(function(){return e},n)}function ee(e){var n=N.context[e.__c],_=j(L++,9);return _.c=e,n?(null==_.__&&(_.__=!0,n.sub(N)),n.props.value):e.__}function ne(e,_){n.useDebugValue&&n.useDebugValue(_?_(e):e)}function _e(e){var n=j(L++,10),_=G();return n.__=e,N.componentDidCatch||(N.componentDidCatch=function(e){n.__&&n.__(e),_[1](e)}),[_[0],function(){_[1](void 0)}]}function te(){I.forEach(function(e){if(e.__P)try{e.__H.__h.forEach(re),e.__H.__h.forEach(ue),e.__H.__h=[]}catch(_){e.__H.__h=[],n.__e(_,e.__v)}}),I=[]}n.__b=function(e){N=null,O&&O(e)},n.__r=function(e){V&&V(e),L=0;var n=(N=e.__c).__H;n&&(n.__h.forEach(re),n.__h.forEach(ue),n.__h=[])},n.diffed=function(e){q&&q(e);var _=e.__c;_&&_.__H&&_.__H.__h.length&&(1!==I.push(_)&&W===n.requestAnimationFrame||((W=n.requestAnimationFrame)||function(e){var n,_=function(){clearTimeout(t),oe&&cancelAnimationFrame(n),setTimeout(e)},t=setTimeout(_,100);oe&&(n=requestAnimationFrame(_))})(te)),N=void 0},n.__c=function(e,_){_.some(function(e){try{e.__h.forEach(re),e.__h=e.__h.filter(function(e){return!e.__||ue(e)})}catch(t){_.some(function(e){e.__h&&(e.__h=[])}),_=[],n.__e(t,e.__v)}}),B&&B(e,_)},n.unmount=function(e){$&&$(e);var _=e.__c;if(_&&_.__H)try{_.__H.__.forEach(re)}catch(e){n.__e(e,_.__v)}};var oe="function"==typeof requestAnimationFrame;function re(e){var n=N;"function"==typeof e.__c&&e.__c(),N=n}function ue(e){var n=N;e.__c=e.__(),N=n}function le(e,n){return!e||e.length!==n.length||n.some(function(n,_){return n!==e[_]})}function ie(e,n){return"function"==typeof n?n(e):n}var ce=function(e,n,_,t){var o;n[0]=0;for(var r=1;r<n.length;r++){var u=n[r++],l=n[r]?(n[0]|=u?1:2,_[n[r++]]):n[++r];3===u?t[0]=l:4===u?t[1]=Object.assign(t[1]||{},l):5===u?(t[1]=t[1]||{})[n[++r]]=l:6===u?t[1][n[++r]]+=l+"":u?(o=e.apply(l,ce(e,l,_,["",null])),t.push(o),l[0]?n[0]|=2:(n[r-2]=0,n[r]=o)):t.push(l)}return t},se=new Map,fe=function(e){var n=se.get(this);return n||(n=new Map,se.set(this,n)),(n=ce(this,n.get(e)||(n.set(e,n=function(e){for(var n,_,t=1,o="",r="",u=[0],l=function(e){1===t&&(e||(o=o.replace(/^\s*\n\s*|\s*\n\s*$/g,"")))?u.push(0,e,o):3===t&&(e||o)?(u.push(3,e,o),t=2):2===t&&"..."===o&&e?u.push(4,e,0):2===t&&o&&!e?u.push(5,0,!0,o):t>=5&&((o||!e&&5===t)&&(u.push(t,0,o,_),t=6),e&&(u.push(t,e,0,_),t=6)),o=""},i=0;i<e.length;i++){i&&(1===t&&l(),l(i));for(var c=0;c<e[i].length;c++)n=e[i][c],1===t?"<"===n?(l(),u=[u],t=3):o+=n:4===t?"--"===o&&">"===n?(t=1,o=""):o=n+o[0]:r?n===r?r="":o+=n:'"'===n||"'"===n?r=n:">"===n?(l(),t=1):t&&("="===n?(t=5,_=o,o=""):"/"===n&&(t<5||">"===e[i][c+1])?(l(),3===t&&(u=u[0]),t=u,(u=u[0]).push(2,0,t),t=0):" "===n||"\t"===n||"\n"===n||"\r"===n?(l(),t=2):o+=n),3===t&&"!--"===o&&(t=4,u=u[0])}return l(),u}(e)),n),arguments,[])).length>1?n:n[0]}.bind(a);
return { h: a, html: fe, render: M, Component: d, createContext: F, useState: G, useReducer: z, useEffect: J, useLayoutEffect: K, useRef: Q, useImperativeHandle: X, useMemo: Y, useCallback: Z, useContext: ee, useDebugValue: ne, useErrorBoundary: _e };
})();

// uPlot
/*! https://github.com/leeoniya/uPlot (v1.6.32) */
var uPlot=function(){"use strict";const l="u-off",e="u-label",t="width",n="height",i="top",o="bottom",s="left",r="right",u="#000",a=u+"0",f="mousemove",c="mousedown",h="mouseup",d="mouseenter",p="mouseleave",m="dblclick",g="change",x="dppxchange",w="--",_="undefined"!=typeof window,b=_?document:null,v=_?window:null,k=_?navigator:null;let y,M;function S(l,e){if(null!=e){let t=l.classList;!t.contains(e)&&t.add(e)}}function T(l,e){let t=l.classList;t.contains(e)&&t.remove(e)}function E(l,e,t){l.style[e]=t+"px"}function z(l,e,t,n){let i=b.createElement(l);return null!=e&&S(i,e),null!=t&&t.insertBefore(i,n),i}function D(l,e){return z("div",l,e)}const P=new WeakMap;function A(e,t,n,i,o){let s="translate("+t+"px,"+n+"px)";s!=P.get(e)&&(e.style.transform=s,P.set(e,s),0>t||0>n||t>i||n>o?S(e,l):T(e,l))}const W=new WeakMap;function Y(l,e,t){let n=e+t;n!=W.get(l)&&(W.set(l,n),l.style.background=e,l.style.borderColor=t)}const C=new WeakMap;function H(l,e,t,n){let i=e+""+t;i!=C.get(l)&&(C.set(l,i),l.style.height=t+"px",l.style.width=e+"px",l.style.marginLeft=n?-e/2+"px":0,l.style.marginTop=n?-t/2+"px":0)}const F={passive:!0},R={...F,capture:!0};function G(l,e,t,n){e.addEventListener(l,t,n?R:F)}function I(l,e,t){e.removeEventListener(l,t,F)}function L(l,e,t,n){let i;t=t||0;let o=2147483647>=(n=n||e.length-1);for(;n-t>1;)i=o?t+n>>1:sl((t+n)/2),l>e[i]?t=i:n=i;return l-e[t]>e[n]-l?n:t}function O(l){return(e,t,n)=>{let i=-1,o=-1;for(let o=t;n>=o;o++)if(l(e[o])){i=o;break}for(let i=n;i>=t;i--)if(l(e[i])){o=i;break}return[i,o]}}_&&function l(){let e=devicePixelRatio;y!=e&&(y=e,M&&I(g,M,l),M=matchMedia(`(min-resolution: ${y-.001}dppx) and (max-resolution: ${y+.001}dppx)`),G(g,M,l),v.dispatchEvent(new CustomEvent(x)))}();const N=l=>null!=l,j=l=>null!=l&&l>0,U=O(N),V=O(j);function B(l,e,t,n){let i=hl(l),o=hl(e);l==e&&(-1==i?(l*=t,e/=t):(l/=t,e*=t));let s=10==t?dl:pl,r=1==o?ul:sl,u=(1==i?sl:ul)(s(ol(l))),a=r(s(ol(e))),f=cl(t,u),c=cl(t,a);return 10==t&&(0>u&&(f=Al(f,-u)),0>a&&(c=Al(c,-a))),n||2==t?(l=f*i,e=c*o):(l=Pl(l,f),e=Dl(e,c)),[l,e]}function $(l,e,t,n){let i=B(l,e,t,n);return 0==l&&(i[0]=0),0==e&&(i[1]=0),i}const J=.1,q={mode:3,pad:J},K={pad:0,soft:null,mode:0},X={min:K,max:K};function Z(l,e,t,n){return Ol(t)?ll(l,e,t):(K.pad=t,K.soft=n?0:null,K.mode=n?3:0,ll(l,e,X))}function Q(l,e){return null==l?e:l}function ll(l,e,t){let n=t.min,i=t.max,o=Q(n.pad,0),s=Q(i.pad,0),r=Q(n.hard,-gl),u=Q(i.hard,gl),a=Q(n.soft,gl),f=Q(i.soft,-gl),c=Q(n.mode,0),h=Q(i.mode,0),d=e-l,p=dl(d),m=fl(ol(l),ol(e)),g=dl(m),x=ol(g-p);(1e-24>d||x>10)&&(d=0,0!=l&&0!=e||(d=1e-24,2==c&&a!=gl&&(o=0),2==h&&f!=-gl&&(s=0)));let w=d||m||1e3,_=dl(w),b=cl(10,sl(_)),v=Al(Pl(l-w*(0==d?0==l?.1:1:o),b/10),24),k=a>l||1!=c&&(3!=c||v>a)&&(2!=c||a>v)?gl:a,y=fl(r,k>v&&l>=k?k:al(k,v)),M=Al(Dl(e+w*(0==d?0==e?.1:1:s),b/10),24),S=e>f||1!=h&&(3!=h||f>M)&&(2!=h||M>f)?-gl:f,T=al(u,M>S&&S>=e?S:fl(S,M));return y==T&&0==y&&(T=100),[y,T]}const el=new Intl.NumberFormat(_?k.language:"en-US"),tl=l=>el.format(l),nl=Math,il=nl.PI,ol=nl.abs,sl=nl.floor,rl=nl.round,ul=nl.ceil,al=nl.min,fl=nl.max,cl=nl.pow,hl=nl.sign,dl=nl.log10,pl=nl.log2,ml=(l,e=1)=>nl.asinh(l/e),gl=1/0;function xl(l){return 1+(0|dl((l^l>>31)-(l>>31)))}function wl(l,e,t){return al(fl(l,e),t)}function _l(l){return"function"==typeof l}function bl(l){return _l(l)?l:()=>l}const vl=l=>l,kl=(l,e)=>e,yl=()=>null,Ml=()=>!0,Sl=(l,e)=>l==e,Tl=/\.\d*?(?=9{6,}|0{6,})/gm,El=l=>{if(Il(l)||Wl.has(l))return l;const e=""+l,t=e.match(Tl);if(null==t)return l;let n=t[0].length-1;if(-1!=e.indexOf("e-")){let[l,t]=e.split("e");return+`${El(l)}e${t}`}return Al(l,n)};function zl(l,e){return El(Al(El(l/e))*e)}function Dl(l,e){return El(ul(El(l/e))*e)}function Pl(l,e){return El(sl(El(l/e))*e)}function Al(l,e=0){if(Il(l))return l;let t=10**e;return rl(l*t*(1+Number.EPSILON))/t}const Wl=new Map;function Yl(l){return((""+l).split(".")[1]||"").length}function Cl(l,e,t,n){let i=[],o=n.map(Yl);for(let s=e;t>s;s++){let e=ol(s),t=Al(cl(l,s),e);for(let r=0;n.length>r;r++){let u=10==l?+`${n[r]}e${s}`:n[r]*t,a=(0>s?e:0)+(o[r]>s?o[r]:0),f=10==l?u:Al(u,a);i.push(f),Wl.set(f,a)}}return i}const Hl={},Fl=[],Rl=[null,null],Gl=Array.isArray,Il=Number.isInteger;function Ll(l){return"string"==typeof l}function Ol(l){let e=!1;if(null!=l){let t=l.constructor;e=null==t||t==Object}return e}function Nl(l){return null!=l&&"object"==typeof l}const jl=Object.getPrototypeOf(Uint8Array),Ul="__proto__";function Vl(l,e=Ol){let t;if(Gl(l)){let n=l.find((l=>null!=l));if(Gl(n)||e(n)){t=Array(l.length);for(let n=0;l.length>n;n++)t[n]=Vl(l[n],e)}else t=l.slice()}else if(l instanceof jl)t=l.slice();else if(e(l)){t={};for(let n in l)n!=Ul&&(t[n]=Vl(l[n],e))}else t=l;return t}function Bl(l){let e=arguments;for(let t=1;e.length>t;t++){let n=e[t];for(let e in n)e!=Ul&&(Ol(l[e])?Bl(l[e],Vl(n[e])):l[e]=Vl(n[e]))}return l}function $l(l,e,t){for(let n,i=0,o=-1;e.length>i;i++){let s=e[i];if(s>o){for(n=s-1;n>=0&&null==l[n];)l[n--]=null;for(n=s+1;t>n&&null==l[n];)l[o=n++]=null}}}const Jl="undefined"==typeof queueMicrotask?l=>Promise.resolve().then(l):queueMicrotask,ql=["January","February","March","April","May","June","July","August","September","October","November","December"],Kl=["Sunday","Monday","Tuesday","Wednesday","Thursday","Friday","Saturday"];function Xl(l){return l.slice(0,3)}const Zl=Kl.map(Xl),Ql=ql.map(Xl),le={MMMM:ql,MMM:Ql,WWWW:Kl,WWW:Zl};function ee(l){return(10>l?"0":"")+l}const te={YYYY:l=>l.getFullYear(),YY:l=>(l.getFullYear()+"").slice(2),MMMM:(l,e)=>e.MMMM[l.getMonth()],MMM:(l,e)=>e.MMM[l.getMonth()],MM:l=>ee(l.getMonth()+1),M:l=>l.getMonth()+1,DD:l=>ee(l.getDate()),D:l=>l.getDate(),WWWW:(l,e)=>e.WWWW[l.getDay()],WWW:(l,e)=>e.WWW[l.getDay()],HH:l=>ee(l.getHours()),H:l=>l.getHours(),h:l=>{let e=l.getHours();return 0==e?12:e>12?e-12:e},AA:l=>12>l.getHours()?"AM":"PM",aa:l=>12>l.getHours()?"am":"pm",a:l=>12>l.getHours()?"a":"p",mm:l=>ee(l.getMinutes()),m:l=>l.getMinutes(),ss:l=>ee(l.getSeconds()),s:l=>l.getSeconds(),fff:l=>function(l){return(10>l?"00":100>l?"0":"")+l}(l.getMilliseconds())};function ne(l,e){e=e||le;let t,n=[],i=/\{([a-z]+)\}|[^{]+/gi;for(;t=i.exec(l);)n.push("{"==t[0][0]?te[t[1]]:t[0]);return l=>{let t="";for(let i=0;n.length>i;i++)t+="string"==typeof n[i]?n[i]:n[i](l,e);return t}}const ie=(new Intl.DateTimeFormat).resolvedOptions().timeZone,oe=l=>l%1==0,se=[1,2,2.5,5],re=Cl(10,-32,0,se),ue=Cl(10,0,32,se),ae=ue.filter(oe),fe=re.concat(ue),ce="{YYYY}",he="\n"+ce,de="{M}/{D}",pe="\n"+de,me=pe+"/{YY}",ge="{aa}",xe="{h}:{mm}"+ge,we="\n"+xe,_e=":{ss}",be=null;function ve(l){let e=1e3*l,t=60*e,n=60*t,i=24*n,o=30*i,s=365*i;return[(1==l?Cl(10,0,3,se).filter(oe):Cl(10,-3,0,se)).concat([e,5*e,10*e,15*e,30*e,t,5*t,10*t,15*t,30*t,n,2*n,3*n,4*n,6*n,8*n,12*n,i,2*i,3*i,4*i,5*i,6*i,7*i,8*i,9*i,10*i,15*i,o,2*o,3*o,4*o,6*o,s,2*s,5*s,10*s,25*s,50*s,100*s]),[[s,ce,be,be,be,be,be,be,1],[28*i,"{MMM}",he,be,be,be,be,be,1],[i,de,he,be,be,be,be,be,1],[n,"{h}"+ge,me,be,pe,be,be,be,1],[t,xe,me,be,pe,be,be,be,1],[e,_e,me+" "+xe,be,pe+" "+xe,be,we,be,1],[l,_e+".{fff}",me+" "+xe,be,pe+" "+xe,be,we,be,1]],function(e){return(r,u,a,f,c,h)=>{let d=[],p=c>=s,m=c>=o&&s>c,g=e(a),x=Al(g*l,3),w=Pe(g.getFullYear(),p?0:g.getMonth(),m||p?1:g.getDate()),_=Al(w*l,3);if(m||p){let t=m?c/o:0,n=p?c/s:0,i=x==_?x:Al(Pe(w.getFullYear()+n,w.getMonth()+t,1)*l,3),r=new Date(rl(i/l)),u=r.getFullYear(),a=r.getMonth();for(let o=0;f>=i;o++){let s=Pe(u+n*o,a+t*o,1),r=s-e(Al(s*l,3));i=Al((+s+r)*l,3),i>f||d.push(i)}}else{let o=i>c?c:i,s=_+(sl(a)-sl(x))+Dl(x-_,o);d.push(s);let p=e(s),m=p.getHours()+p.getMinutes()/t+p.getSeconds()/n,g=c/n,w=h/r.axes[u]._space;for(;s=Al(s+c,1==l?0:3),f>=s;)if(g>1){let l=sl(Al(m+g,6))%24,t=e(s).getHours()-l;t>1&&(t=-1),s-=t*n,m=(m+g)%24,.7>Al((s-d[d.length-1])/c,3)*w||d.push(s)}else d.push(s)}return d}}]}const[ke,ye,Me]=ve(1),[Se,Te,Ee]=ve(.001);function ze(l,e){return l.map((l=>l.map(((t,n)=>0==n||8==n||null==t?t:e(1==n||0==l[8]?t:l[1]+t)))))}function De(l,e){return(t,n,i,o,s)=>{let r,u,a,f,c,h,d=e.find((l=>s>=l[0]))||e[e.length-1];return n.map((e=>{let t=l(e),n=t.getFullYear(),i=t.getMonth(),o=t.getDate(),s=t.getHours(),p=t.getMinutes(),m=t.getSeconds(),g=n!=r&&d[2]||i!=u&&d[3]||o!=a&&d[4]||s!=f&&d[5]||p!=c&&d[6]||m!=h&&d[7]||d[1];return r=n,u=i,a=o,f=s,c=p,h=m,g(t)}))}}function Pe(l,e,t){return new Date(l,e,t)}function Ae(l,e){return e(l)}function We(l,e){return(t,n,i,o)=>null==o?w:e(l(n))}Cl(2,-53,53,[1]);const Ye={show:!0,live:!0,isolate:!1,mount:()=>{},markers:{show:!0,width:2,stroke:function(l,e){let t=l.series[e];return t.width?t.stroke(l,e):t.points.width?t.points.stroke(l,e):null},fill:function(l,e){return l.series[e].fill(l,e)},dash:"solid"},idx:null,idxs:null,values:[]},Ce=[0,0];function He(l,e,t,n=!0){return l=>{0==l.button&&(!n||l.target==e)&&t(l)}}function Fe(l,e,t,n=!0){return l=>{(!n||l.target==e)&&t(l)}}const Re={show:!0,x:!0,y:!0,lock:!1,move:function(l,e,t){return Ce[0]=e,Ce[1]=t,Ce},points:{one:!1,show:function(l,e){let i=l.cursor.points,o=D(),s=i.size(l,e);E(o,t,s),E(o,n,s);let r=s/-2;E(o,"marginLeft",r),E(o,"marginTop",r);let u=i.width(l,e,s);return u&&E(o,"borderWidth",u),o},size:function(l,e){return l.series[e].points.size},width:0,stroke:function(l,e){let t=l.series[e].points;return t._stroke||t._fill},fill:function(l,e){let t=l.series[e].points;return t._fill||t._stroke}},bind:{mousedown:He,mouseup:He,click:He,dblclick:He,mousemove:Fe,mouseleave:Fe,mouseenter:Fe},drag:{setScale:!0,x:!0,y:!1,dist:0,uni:null,click:(l,e)=>{e.stopPropagation(),e.stopImmediatePropagation()},_x:!1,_y:!1},focus:{dist:(l,e,t,n,i)=>n-i,prox:-1,bias:0},hover:{skip:[void 0],prox:null,bias:0},left:-10,top:-10,idx:null,dataIdx:null,idxs:null,event:null},Ge={show:!0,stroke:"rgba(0,0,0,0.07)",width:2},Ie=Bl({},Ge,{filter:kl}),Le=Bl({},Ie,{size:10}),Oe=Bl({},Ge,{show:!1}),Ne='12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "Noto Sans", sans-serif, "Apple Color Emoji", "Segoe UI Emoji", "Segoe UI Symbol", "Noto Color Emoji"',je="bold "+Ne,Ue={show:!0,scale:"x",stroke:u,space:50,gap:5,alignTo:1,size:50,labelGap:0,labelSize:30,labelFont:je,side:2,grid:Ie,ticks:Le,border:Oe,font:Ne,lineGap:1.5,rotate:0},Ve={show:!0,scale:"x",auto:!1,sorted:1,min:gl,max:-gl,idxs:[]};function Be(l,e){return e.map((l=>null==l?"":tl(l)))}function $e(l,e,t,n,i,o,s){let r=[],u=Wl.get(i)||0;for(let l=t=s?t:Al(Dl(t,i),u);n>=l;l=Al(l+i,u))r.push(Object.is(l,-0)?0:l);return r}function Je(l,e,t,n,i){const o=[],s=l.scales[l.axes[e].scale].log,r=sl((10==s?dl:pl)(t));i=cl(s,r),10==s&&(i=fe[L(i,fe)]);let u=t,a=i*s;10==s&&(a=fe[L(a,fe)]);do{o.push(u),u+=i,10!=s||Wl.has(u)||(u=Al(u,Wl.get(i))),a>u||(a=(i=u)*s,10==s&&(a=fe[L(a,fe)]))}while(n>=u);return o}function qe(l,e,t,n,i){let o=l.scales[l.axes[e].scale].asinh,s=n>o?Je(l,e,fl(o,t),n,i):[o],r=0>n||t>0?[]:[0];return(-o>t?Je(l,e,fl(o,-n),-t,i):[o]).reverse().map((l=>-l)).concat(r,s)}const Ke=/./,Xe=/[12357]/,Ze=/[125]/,Qe=/1/,lt=(l,e,t,n)=>l.map(((l,i)=>4==e&&0==l||i%n==0&&t.test(l.toExponential()[0>l?1:0])?l:null));function et(l,e,t){let n=l.axes[t],i=n.scale,o=l.scales[i],s=l.valToPos,r=n._space,u=s(10,i),a=s(9,i)-u<r?s(7,i)-u<r?s(5,i)-u<r?Qe:Ze:Xe:Ke;if(a==Qe){let l=ol(s(1,i)-u);if(r>l)return lt(e.slice().reverse(),o.distr,a,ul(r/l)).reverse()}return lt(e,o.distr,a,1)}function tt(l,e,t){let n=l.axes[t],i=n.scale,o=n._space,s=l.valToPos,r=ol(s(1,i)-s(2,i));return o>r?lt(e.slice().reverse(),3,Ke,ul(o/r)).reverse():e}function nt(l,e,t,n){return null==n?w:null==e?"":tl(e)}const it={show:!0,scale:"y",stroke:u,space:30,gap:5,alignTo:1,size:50,labelGap:0,labelSize:30,labelFont:je,side:3,grid:Ie,ticks:Le,border:Oe,font:Ne,lineGap:1.5,rotate:0},ot={scale:null,auto:!0,sorted:0,min:gl,max:-gl},st=(l,e,t,n,i)=>i,rt={show:!0,auto:!0,sorted:0,gaps:st,alpha:1,facets:[Bl({},ot,{scale:"x"}),Bl({},ot,{scale:"y"})]},ut={scale:"y",auto:!0,sorted:0,show:!0,spanGaps:!1,gaps:st,alpha:1,points:{show:function(l,e){let{scale:t,idxs:n}=l.series[0],i=l._data[0],o=l.valToPos(i[n[0]],t,!0),s=l.valToPos(i[n[1]],t,!0);return ol(s-o)/(l.series[e].points.space*y)>=n[1]-n[0]},filter:null},values:null,min:gl,max:-gl,idxs:[],path:null,clip:null};function at(l,e,t){return t/10}const ft={time:!0,auto:!0,distr:1,log:10,asinh:1,min:null,max:null,dir:1,ori:0},ct=Bl({},ft,{time:!1,ori:1}),ht={};function dt(l){let e=ht[l];return e||(e={key:l,plots:[],sub(l){e.plots.push(l)},unsub(l){e.plots=e.plots.filter((e=>e!=l))},pub(l,t,n,i,o,s,r){for(let u=0;e.plots.length>u;u++)e.plots[u]!=t&&e.plots[u].pub(l,t,n,i,o,s,r)}},null!=l&&(ht[l]=e)),e}function pt(l,e,t){const n=l.mode,i=l.series[e],o=2==n?l._data[e]:l._data,s=l.scales,r=l.bbox;let u=o[0],a=2==n?o[1]:o[e],f=2==n?s[i.facets[0].scale]:s[l.series[0].scale],c=2==n?s[i.facets[1].scale]:s[i.scale],h=r.left,d=r.top,p=r.width,m=r.height,g=l.valToPosH,x=l.valToPosV;return 0==f.ori?t(i,u,a,f,c,g,x,h,d,p,m,kt,Mt,Tt,zt,Pt):t(i,u,a,f,c,x,g,d,h,m,p,yt,St,Et,Dt,At)}function mt(l,e){let t=0,n=0,i=Q(l.bands,Fl);for(let l=0;i.length>l;l++){let o=i[l];o.series[0]==e?t=o.dir:o.series[1]==e&&(n|=1==o.dir?1:2)}return[t,1==n?-1:2==n?1:3==n?2:0]}function gt(l,e,t,n,i){let o=l.series[e],s=l.scales[2==l.mode?o.facets[1].scale:o.scale];return-1==i?s.min:1==i?s.max:3==s.distr?1==s.dir?s.min:s.max:0}function xt(l,e,t,n,i,o){return pt(l,e,((l,e,s,r,u,a,f,c,h,d,p)=>{let m=l.pxRound;const g=0==r.ori?Mt:St;let x,w;1==r.dir*(0==r.ori?1:-1)?(x=t,w=n):(x=n,w=t);let _=m(a(e[x],r,d,c)),b=m(f(s[x],u,p,h)),v=m(a(e[w],r,d,c)),k=m(f(1==o?u.max:u.min,u,p,h)),y=new Path2D(i);return g(y,v,k),g(y,_,k),g(y,_,b),y}))}function wt(l,e,t,n,i,o){let s=null;if(l.length>0){s=new Path2D;const r=0==e?Tt:Et;let u=t;for(let e=0;l.length>e;e++){let t=l[e];if(t[1]>t[0]){let l=t[0]-u;l>0&&r(s,u,n,l,n+o),u=t[1]}}let a=t+i-u,f=10;a>0&&r(s,u,n-f/2,a,n+o+f)}return s}function _t(l,e,t,n,i,o,s){let r=[],u=l.length;for(let a=1==i?t:n;a>=t&&n>=a;a+=i)if(null===e[a]){let f=a,c=a;if(1==i)for(;++a<=n&&null===e[a];)c=a;else for(;--a>=t&&null===e[a];)c=a;let h=o(l[f]),d=c==f?h:o(l[c]),p=f-i;h=s>0||0>p||p>=u?h:o(l[p]);let m=c+i;d=0>s||0>m||m>=u?d:o(l[m]),h>d||r.push([h,d])}return r}function bt(l){return 0==l?vl:1==l?rl:e=>zl(e,l)}function vt(l){let e=0==l?kt:yt,t=0==l?(l,e,t,n,i,o)=>{l.arcTo(e,t,n,i,o)}:(l,e,t,n,i,o)=>{l.arcTo(t,e,i,n,o)},n=0==l?(l,e,t,n,i)=>{l.rect(e,t,n,i)}:(l,e,t,n,i)=>{l.rect(t,e,i,n)};return(l,i,o,s,r,u=0,a=0)=>{0==u&&0==a?n(l,i,o,s,r):(u=al(u,s/2,r/2),a=al(a,s/2,r/2),e(l,i+u,o),t(l,i+s,o,i+s,o+r,u),t(l,i+s,o+r,i,o+r,a),t(l,i,o+r,i,o,a),t(l,i,o,i+s,o,u),l.closePath())}}const kt=(l,e,t)=>{l.moveTo(e,t)},yt=(l,e,t)=>{l.moveTo(t,e)},Mt=(l,e,t)=>{l.lineTo(e,t)},St=(l,e,t)=>{l.lineTo(t,e)},Tt=vt(0),Et=vt(1),zt=(l,e,t,n,i,o)=>{l.arc(e,t,n,i,o)},Dt=(l,e,t,n,i,o)=>{l.arc(t,e,n,i,o)},Pt=(l,e,t,n,i,o,s)=>{l.bezierCurveTo(e,t,n,i,o,s)},At=(l,e,t,n,i,o,s)=>{l.bezierCurveTo(t,e,i,n,s,o)};function Wt(){return(l,e,t,n,i)=>pt(l,e,((e,o,s,r,u,a,f,c,h,d,p)=>{let m,g,{pxRound:x,points:w}=e;0==r.ori?(m=kt,g=zt):(m=yt,g=Dt);const _=Al(w.width*y,3);let b=(w.size-w.width)/2*y,v=Al(2*b,3),k=new Path2D,M=new Path2D,{left:S,top:T,width:E,height:z}=l.bbox;Tt(M,S-v,T-v,E+2*v,z+2*v);const D=l=>{if(null!=s[l]){let e=x(a(o[l],r,d,c)),t=x(f(s[l],u,p,h));m(k,e+b,t),g(k,e,t,b,0,2*il)}};if(i)i.forEach(D);else for(let l=t;n>=l;l++)D(l);return{stroke:_>0?k:null,fill:k,clip:M,flags:3}}))}function Yt(l){return(e,t,n,i,o,s)=>{n!=i&&(o!=n&&s!=n&&l(e,t,n),o!=i&&s!=i&&l(e,t,i),l(e,t,s))}}const Ct=Yt(Mt),Ht=Yt(St);function Ft(l){const e=Q(l?.alignGaps,0);return(l,t,n,i)=>pt(l,t,((o,s,r,u,a,f,c,h,d,p,m)=>{[n,i]=U(r,n,i);let g,x,w=o.pxRound,_=l=>w(f(l,u,p,h)),b=l=>w(c(l,a,m,d));0==u.ori?(g=Mt,x=Ct):(g=St,x=Ht);const v=u.dir*(0==u.ori?1:-1),k={stroke:new Path2D,fill:null,clip:null,band:null,gaps:null,flags:1},y=k.stroke;let M=!1;if(i-n<4*p)for(let l=1==v?n:i;l>=n&&i>=l;l+=v){let e=r[l];null===e?M=!0:null!=e&&g(y,_(s[l]),b(e))}else{let e,t,o,a=e=>l.posToVal(e,u.key,!0),f=null,c=null,h=_(s[1==v?n:i]),d=_(s[n]),p=_(s[i]),m=a(1==v?d+1:p-1);for(let l=1==v?n:i;l>=n&&i>=l;l+=v){let n=s[l],i=(1==v?m>n:n>m)?h:_(n),o=r[l];i==h?null!=o?(t=o,null==f?(g(y,i,b(t)),e=f=c=t):f>t?f=t:t>c&&(c=t)):null===o&&(M=!0):(null!=f&&x(y,h,b(f),b(c),b(e),b(t)),null!=o?(t=o,g(y,i,b(t)),f=c=e=t):(f=c=null,null===o&&(M=!0)),h=i,m=a(h+v))}null!=f&&f!=c&&o!=h&&x(y,h,b(f),b(c),b(e),b(t))}let[S,T]=mt(l,t);if(null!=o.fill||0!=S){let e=k.fill=new Path2D(y),r=b(o.fillTo(l,t,o.min,o.max,S)),u=_(s[n]),a=_(s[i]);-1==v&&([a,u]=[u,a]),g(e,a,r),g(e,u,r)}if(!o.spanGaps){let a=[];M&&a.push(..._t(s,r,n,i,v,_,e)),k.gaps=a=o.gaps(l,t,n,i,a),k.clip=wt(a,u.ori,h,d,p,m)}return 0!=T&&(k.band=2==T?[xt(l,t,n,i,y,-1),xt(l,t,n,i,y,1)]:xt(l,t,n,i,y,T)),k}))}function Rt(l,e,t,n,i,o,s=gl){if(l.length>1){let r=null;for(let u=0,a=1/0;l.length>u;u++)if(void 0!==e[u]){if(null!=r){let e=ol(l[u]-l[r]);a>e&&(a=e,s=ol(t(l[u],n,i,o)-t(l[r],n,i,o)))}r=u}}return s}function Gt(l,e,t,n,i){const o=l.length;if(2>o)return null;const s=new Path2D;if(t(s,l[0],e[0]),2==o)n(s,l[1],e[1]);else{let t=Array(o),n=Array(o-1),r=Array(o-1),u=Array(o-1);for(let t=0;o-1>t;t++)r[t]=e[t+1]-e[t],u[t]=l[t+1]-l[t],n[t]=r[t]/u[t];t[0]=n[0];for(let l=1;o-1>l;l++)0===n[l]||0===n[l-1]||n[l-1]>0!=n[l]>0?t[l]=0:(t[l]=3*(u[l-1]+u[l])/((2*u[l]+u[l-1])/n[l-1]+(u[l]+2*u[l-1])/n[l]),isFinite(t[l])||(t[l]=0));t[o-1]=n[o-2];for(let n=0;o-1>n;n++)i(s,l[n]+u[n]/3,e[n]+t[n]*u[n]/3,l[n+1]-u[n]/3,e[n+1]-t[n+1]*u[n]/3,l[n+1],e[n+1])}return s}const It=new Set;function Lt(){for(let l of It)l.syncRect(!0)}_&&(G("resize",v,Lt),G("scroll",v,Lt,!0),G(x,v,(()=>{en.pxRatio=y})));const Ot=Ft(),Nt=Wt();function jt(l,e,t,n){return(n?[l[0],l[1]].concat(l.slice(2)):[l[0]].concat(l.slice(1))).map(((l,n)=>Ut(l,n,e,t)))}function Ut(l,e,t,n){return Bl({},0==e?t:n,l)}function Vt(l,e,t){return null==e?Rl:[e,t]}const Bt=Vt;function $t(l,e,t){return null==e?Rl:Z(e,t,J,!0)}function Jt(l,e,t,n){return null==e?Rl:B(e,t,l.scales[n].log,!1)}const qt=Jt;function Kt(l,e,t,n){return null==e?Rl:$(e,t,l.scales[n].log,!1)}const Xt=Kt;function Zt(l,e,t,n,i){let o=fl(xl(l),xl(e)),s=e-l,r=L(i/n*s,t);do{let l=t[r],e=n*l/s;if(e>=i&&17>=o+(5>l?Wl.get(l):0))return[l,e]}while(++r<t.length);return[0,0]}function Qt(l){let e,t;return[l=l.replace(/(\d+)px/,((l,n)=>(e=rl((t=+n)*y))+"px")),e,t]}function ln(l){l.show&&[l.font,l.labelFont].forEach((l=>{let e=Al(l[2]*y,1);l[0]=l[0].replace(/[0-9.]+px/,e+"px"),l[1]=e}))}function en(u,g,_){const k={mode:Q(u.mode,1)},M=k.mode;function P(l,e,t,n){let i=e.valToPct(l);return n+t*(-1==e.dir?1-i:i)}function W(l,e,t,n){let i=e.valToPct(l);return n+t*(-1==e.dir?i:1-i)}function C(l,e,t,n){return 0==e.ori?P(l,e,t,n):W(l,e,t,n)}k.valToPosH=P,k.valToPosV=W;let F=!1;k.status=0;const R=k.root=D("uplot");null!=u.id&&(R.id=u.id),S(R,u.class),u.title&&(D("u-title",R).textContent=u.title);const O=z("canvas"),K=k.ctx=O.getContext("2d"),X=D("u-wrap",R);G("click",X,(l=>{l.target===el&&(Nn!=Gn||jn!=In)&&Zn.click(k,l)}),!0);const ll=k.under=D("u-under",X);X.appendChild(O);const el=k.over=D("u-over",X),tl=+Q((u=Vl(u)).pxAlign,1),sl=bt(tl);(u.plugins||[]).forEach((l=>{l.opts&&(u=l.opts(k,u)||u)}));const hl=u.ms||.001,pl=k.series=1==M?jt(u.series||[],Ve,ut,!1):function(l,e){return l.map(((l,t)=>0==t?{}:Bl({},e,l)))}(u.series||[null],rt),xl=k.axes=jt(u.axes||[],Ue,it,!0),vl=k.scales={},Tl=k.bands=u.bands||[];Tl.forEach((l=>{l.fill=bl(l.fill||null),l.dir=Q(l.dir,-1)}));const El=2==M?pl[1].facets[0].scale:pl[0].scale,Dl={axes:function(){for(let l=0;xl.length>l;l++){let e=xl[l];if(!e.show||!e._show)continue;let t,n,u=e.side,a=u%2,f=e.stroke(k,l),c=0==u||3==u?-1:1,[h,d]=e._found;if(null!=e.label){let s=rl((e._lpos+e.labelGap*c)*y);_n(e.labelFont[0],f,"center",2==u?i:o),K.save(),1==a?(t=n=0,K.translate(s,rl(lt+st/2)),K.rotate((3==u?-il:il)/2)):(t=rl(Qe+ot/2),n=s);let r=_l(e.label)?e.label(k,l,h,d):e.label;K.fillText(r,t,n),K.restore()}if(0==d)continue;let p=vl[e.scale],m=0==a?ot:st,g=0==a?Qe:lt,x=e._splits,w=2==p.distr?x.map((l=>pn[l])):x,_=2==p.distr?pn[x[1]]-pn[x[0]]:h,b=e.ticks,v=e.border,M=b.show?b.size:0,S=rl(M*y),T=rl((2==e.alignTo?e._size-M-e.gap:e.gap)*y),E=e._rotate*-il/180,z=sl(e._pos*y),D=z+(S+T)*c;n=0==a?D:0,t=1==a?D:0,_n(e.font[0],f,1==e.align?s:2==e.align?r:E>0?s:0>E?r:0==a?"center":3==u?r:s,E||1==a?"middle":2==u?i:o);let P=e.font[1]*e.lineGap,A=x.map((l=>sl(C(l,p,m,g)))),W=e._values;for(let l=0;W.length>l;l++){let e=W[l];if(null!=e){0==a?t=A[l]:n=A[l],e=""+e;let i=-1==e.indexOf("\n")?[e]:e.split(/\n/gm);for(let l=0;i.length>l;l++){let e=i[l];E?(K.save(),K.translate(t,n+l*P),K.rotate(E),K.fillText(e,0,0),K.restore()):K.fillText(e,t,n+l*P)}}}b.show&&zn(A,b.filter(k,w,l,d,_),a,u,z,S,Al(b.width*y,3),b.stroke(k,l),b.dash,b.cap);let Y=e.grid;Y.show&&zn(A,Y.filter(k,w,l,d,_),a,0==a?2:1,0==a?lt:Qe,0==a?st:ot,Al(Y.width*y,3),Y.stroke(k,l),Y.dash,Y.cap),v.show&&zn([z],[1],0==a?1:0,0==a?1:2,1==a?lt:Qe,1==a?st:ot,Al(v.width*y,3),v.stroke(k,l),v.dash,v.cap)}Ci("drawAxes")},series:function(){if(Gt>0){let l=pl.some((l=>l._focus))&&dn!=Tt.alpha;l&&(K.globalAlpha=dn=Tt.alpha),pl.forEach(((l,e)=>{if(e>0&&l.show&&(kn(e,!1),kn(e,!0),null==l._paths)){let t=dn;dn!=l.alpha&&(K.globalAlpha=dn=l.alpha);let n=2==M?[0,g[e][0].length-1]:function(l){let e=wl(Lt-1,0,Gt-1),t=wl(en+1,0,Gt-1);for(;null==l[e]&&e>0;)e--;for(;null==l[t]&&Gt-1>t;)t++;return[e,t]}(g[e]);l._paths=l.paths(k,e,n[0],n[1]),dn!=t&&(K.globalAlpha=dn=t)}})),pl.forEach(((l,e)=>{if(e>0&&l.show){let t=dn;dn!=l.alpha&&(K.globalAlpha=dn=l.alpha),null!=l._paths&&yn(e,!1);{let t=null!=l._paths?l._paths.gaps:null,n=l.points.show(k,e,Lt,en,t),i=l.points.filter(k,e,n,t);(n||i)&&(l.points._paths=l.points.paths(k,e,Lt,en,i),yn(e,!0))}dn!=t&&(K.globalAlpha=dn=t),Ci("drawSeries",e)}})),l&&(K.globalAlpha=dn=1)}}},Pl=(u.drawOrder||["axes","series"]).map((l=>Dl[l]));function Cl(l){const e=3==l.distr?e=>dl(e>0?e:l.clamp(k,e,l.min,l.max,l.key)):4==l.distr?e=>ml(e,l.asinh):100==l.distr?e=>l.fwd(e):l=>l;return t=>{let n=e(t),{_min:i,_max:o}=l;return(n-i)/(o-i)}}function Il(l){let e=vl[l];if(null==e){let t=(u.scales||Hl)[l]||Hl;if(null!=t.from){Il(t.from);let e=Bl({},vl[t.from],t,{key:l});e.valToPct=Cl(e),vl[l]=e}else{e=vl[l]=Bl({},l==El?ft:ct,t),e.key=l;let n=e.time,i=e.range,o=Gl(i);if((l!=El||2==M&&!n)&&(!o||null!=i[0]&&null!=i[1]||(i={min:null==i[0]?q:{mode:1,hard:i[0],soft:i[0]},max:null==i[1]?q:{mode:1,hard:i[1],soft:i[1]}},o=!1),!o&&Ol(i))){let l=i;i=(e,t,n)=>null==t?Rl:Z(t,n,l)}e.range=bl(i||(n?Bt:l==El?3==e.distr?qt:4==e.distr?Xt:Vt:3==e.distr?Jt:4==e.distr?Kt:$t)),e.auto=bl(!o&&e.auto),e.clamp=bl(e.clamp||at),e._min=e._max=null,e.valToPct=Cl(e)}}}Il("x"),Il("y"),1==M&&pl.forEach((l=>{Il(l.scale)})),xl.forEach((l=>{Il(l.scale)}));for(let l in u.scales)Il(l);const jl=vl[El],Ul=jl.distr;let $l,ql;0==jl.ori?(S(R,"u-hz"),$l=P,ql=W):(S(R,"u-vt"),$l=W,ql=P);const Kl={};for(let l in vl){let e=vl[l];null==e.min&&null==e.max||(Kl[l]={min:e.min,max:e.max},e.min=e.max=null)}const Xl=u.tzDate||(l=>new Date(rl(l/hl))),Zl=u.fmtDate||ne,Ql=1==hl?Me(Xl):Ee(Xl),le=De(Xl,ze(1==hl?ye:Te,Zl)),ee=We(Xl,Ae("{YYYY}-{MM}-{DD} {h}:{mm}{aa}",Zl)),te=[],ie=k.legend=Bl({},Ye,u.legend),oe=k.cursor=Bl({},Re,{drag:{y:2==M}},u.cursor),se=ie.show,re=oe.show,ue=ie.markers;let ce,he,de;ie.idxs=te,ue.width=bl(ue.width),ue.dash=bl(ue.dash),ue.stroke=bl(ue.stroke),ue.fill=bl(ue.fill);let pe,me=[],ge=[],xe=!1,we={};if(ie.live){const l=pl[1]?pl[1].values:null;xe=null!=l,pe=xe?l(k,1,0):{_:0};for(let l in pe)we[l]=w}if(se)if(ce=z("table","u-legend",R),de=z("tbody",null,ce),ie.mount(k,ce),xe){he=z("thead",null,ce,de);let l=z("tr",null,he);for(var _e in z("th",null,l),pe)z("th",e,l).textContent=_e}else S(ce,"u-inline"),ie.live&&S(ce,"u-live");const be={show:!0},ve={show:!1},Pe=new Map;function Ce(l,e,t,n=!0){const i=Pe.get(e)||{},o=oe.bind[l](k,e,t,n);o&&(G(l,e,i[l]=o),Pe.set(e,i))}function He(l,e){const t=Pe.get(e)||{};for(let n in t)null!=l&&n!=l||(I(n,e,t[n]),delete t[n]);null==l&&Pe.delete(e)}let Fe=0,Ge=0,Ie=0,Le=0,Oe=0,Ne=0,je=Oe,Ke=Ne,Xe=Ie,Ze=Le,Qe=0,lt=0,ot=0,st=0;k.bbox={};let ht=!1,pt=!1,mt=!1,xt=!1,wt=!1,_t=!1;function vt(l,e,t){(t||l!=k.width||e!=k.height)&&kt(l,e),An(!1),mt=!0,pt=!0,Jn()}function kt(l,e){k.width=Fe=Ie=l,k.height=Ge=Le=e,Oe=Ne=0,function(){let l=!1,e=!1,t=!1,n=!1;xl.forEach((i=>{if(i.show&&i._show){let{side:o,_size:s}=i,r=s+(null!=i.label?i.labelSize:0);r>0&&(o%2?(Ie-=r,3==o?(Oe+=r,n=!0):t=!0):(Le-=r,0==o?(Ne+=r,l=!0):e=!0))}})),Ct[0]=l,Ct[1]=t,Ct[2]=e,Ct[3]=n,Ie-=Rt[1]+Rt[3],Oe+=Rt[3],Le-=Rt[2]+Rt[0],Ne+=Rt[0]}(),function(){let l=Oe+Ie,e=Ne+Le,t=Oe,n=Ne;function i(i,o){switch(i){case 1:return l+=o,l-o;case 2:return e+=o,e-o;case 3:return t-=o,t+o;case 0:return n-=o,n+o}}xl.forEach((l=>{if(l.show&&l._show){let e=l.side;l._pos=i(e,l._size),null!=l.label&&(l._lpos=i(e,l.labelSize))}}))}();let t=k.bbox;Qe=t.left=zl(Oe*y,.5),lt=t.top=zl(Ne*y,.5),ot=t.width=zl(Ie*y,.5),st=t.height=zl(Le*y,.5)}const yt=3;if(k.setSize=function({width:l,height:e}){vt(l,e)},null==oe.dataIdx){let l=oe.hover,e=l.skip=new Set(l.skip??[]);e.add(void 0);let t=l.prox=bl(l.prox),n=l.bias??=0;oe.dataIdx=(l,i,o,s)=>{if(0==i)return o;let r=o,u=t(l,i,o,s)??gl,a=u>=0&&gl>u,f=0==jl.ori?Ie:Le,c=oe.left,h=g[0],d=g[i];if(e.has(d[o])){r=null;let l,t=null,i=null;if(0==n||-1==n)for(l=o;null==t&&l-- >0;)e.has(d[l])||(t=l);if(0==n||1==n)for(l=o;null==i&&l++<d.length;)e.has(d[l])||(i=l);if(null!=t||null!=i)if(a){let l=c-(null==t?-1/0:$l(h[t],jl,f,0)),e=(null==i?1/0:$l(h[i],jl,f,0))-c;l>e?e>u||(r=i):l>u||(r=t)}else r=null==i?t:null==t||o-t>i-o?i:t}else a&&ol(c-$l(h[o],jl,f,0))>u&&(r=null);return r}}const Mt=l=>{oe.event=l};oe.idxs=te,oe._lock=!1;let St=oe.points;St.show=bl(St.show),St.size=bl(St.size),St.stroke=bl(St.stroke),St.width=bl(St.width),St.fill=bl(St.fill);const Tt=k.focus=Bl({},u.focus||{alpha:.3},oe.focus),Et=Tt.prox>=0,zt=Et&&St.one;let Dt=[],Pt=[],At=[];function Wt(l,e){let t=St.show(k,e);if(t instanceof HTMLElement)return S(t,"u-cursor-pt"),S(t,l.class),A(t,-10,-10,Ie,Le),el.insertBefore(t,Dt[e]),t}function Yt(t,n){if(1==M||n>0){let l=1==M&&vl[t.scale].time,e=t.value;t.value=l?Ll(e)?We(Xl,Ae(e,Zl)):e||ee:e||nt,t.label=t.label||(l?"Time":"Value")}if(zt||n>0){t.width=null==t.width?1:t.width,t.paths=t.paths||Ot||yl,t.fillTo=bl(t.fillTo||gt),t.pxAlign=+Q(t.pxAlign,tl),t.pxRound=bt(t.pxAlign),t.stroke=bl(t.stroke||null),t.fill=bl(t.fill||null),t._stroke=t._fill=t._paths=t._focus=null;let l=function(l){return Al(1*(3+2*(l||1)),3)}(fl(1,t.width)),e=t.points=Bl({},{size:l,width:fl(1,.2*l),stroke:t.stroke,space:2*l,paths:Nt,_stroke:null,_fill:null},t.points);e.show=bl(e.show),e.filter=bl(e.filter),e.fill=bl(e.fill),e.stroke=bl(e.stroke),e.paths=bl(e.paths),e.pxAlign=t.pxAlign}if(se){let i=function(t,n){if(0==n&&(xe||!ie.live||2==M))return Rl;let i=[],o=z("tr","u-series",de,de.childNodes[n]);S(o,t.class),t.show||S(o,l);let s=z("th",null,o);if(ue.show){let l=D("u-marker",s);if(n>0){let e=ue.width(k,n);e&&(l.style.border=e+"px "+ue.dash(k,n)+" "+ue.stroke(k,n)),l.style.background=ue.fill(k,n)}}let r=D(e,s);for(var u in t.label instanceof HTMLElement?r.appendChild(t.label):r.textContent=t.label,n>0&&(ue.show||(r.style.color=t.width>0?ue.stroke(k,n):ue.fill(k,n)),Ce("click",s,(l=>{if(oe._lock)return;Mt(l);let e=pl.indexOf(t);if((l.ctrlKey||l.metaKey)!=ie.isolate){let l=pl.some(((l,t)=>t>0&&t!=e&&l.show));pl.forEach(((t,n)=>{n>0&&oi(n,l?n==e?be:ve:be,!0,Fi.setSeries)}))}else oi(e,{show:!t.show},!0,Fi.setSeries)}),!1),Et&&Ce(d,s,(l=>{oe._lock||(Mt(l),oi(pl.indexOf(t),ai,!0,Fi.setSeries))}),!1)),pe){let l=z("td","u-value",o);l.textContent="--",i.push(l)}return[o,i]}(t,n);me.splice(n,0,i[0]),ge.splice(n,0,i[1]),ie.values.push(null)}if(re){te.splice(n,0,null);let l=null;zt?0==n&&(l=Wt(t,n)):n>0&&(l=Wt(t,n)),Dt.splice(n,0,l),Pt.splice(n,0,0),At.splice(n,0,0)}Ci("addSeries",n)}k.addSeries=function(l,e){e=null==e?pl.length:e,l=1==M?Ut(l,e,Ve,ut):Ut(l,e,{},rt),pl.splice(e,0,l),Yt(pl[e],e)},k.delSeries=function(l){if(pl.splice(l,1),se){ie.values.splice(l,1),ge.splice(l,1);let e=me.splice(l,1)[0];He(null,e.firstChild),e.remove()}re&&(te.splice(l,1),Dt.splice(l,1)[0].remove(),Pt.splice(l,1),At.splice(l,1)),Ci("delSeries",l)};const Ct=[!1,!1,!1,!1];function Ht(l,e,t){let[n,i,o,s]=t,r=e%2,u=0;return 0==r&&(s||i)&&(u=0==e&&!n||2==e&&!o?rl(Ue.size/3):0),1==r&&(n||o)&&(u=1==e&&!i||3==e&&!s?rl(it.size/2):0),u}const Ft=k.padding=(u.padding||[Ht,Ht,Ht,Ht]).map((l=>bl(Q(l,Ht)))),Rt=k._padding=Ft.map(((l,e)=>l(k,e,Ct,0)));let Gt,Lt=null,en=null;const tn=1==M?pl[0].idxs:null;let nn,on,sn,rn,un,an,fn,cn,hn,dn,pn=null,mn=!1;function gn(l,e){if(k.data=k._data=g=null==l?[]:l,2==M){Gt=0;for(let l=1;pl.length>l;l++)Gt+=g[l][0].length}else{0==g.length&&(k.data=k._data=g=[[]]),pn=g[0],Gt=pn.length;let l=g;if(2==Ul){l=g.slice();let e=l[0]=Array(Gt);for(let l=0;Gt>l;l++)e[l]=l}k._data=g=l}if(An(!0),Ci("setData"),2==Ul&&(mt=!0),!1!==e){let l=jl;l.auto(k,mn)?xn():ii(El,l.min,l.max),xt=xt||oe.left>=0,_t=!0,Jn()}}function xn(){let l,e;mn=!0,1==M&&(Gt>0?(Lt=tn[0]=0,en=tn[1]=Gt-1,l=g[0][Lt],e=g[0][en],2==Ul?(l=Lt,e=en):l==e&&(3==Ul?[l,e]=B(l,l,jl.log,!1):4==Ul?[l,e]=$(l,l,jl.log,!1):jl.time?e=l+rl(86400/hl):[l,e]=Z(l,e,J,!0))):(Lt=tn[0]=l=null,en=tn[1]=e=null)),ii(El,l,e)}function wn(l,e,t,n,i,o){l??=a,t??=Fl,n??="butt",i??=a,o??="round",l!=nn&&(K.strokeStyle=nn=l),i!=on&&(K.fillStyle=on=i),e!=sn&&(K.lineWidth=sn=e),o!=un&&(K.lineJoin=un=o),n!=an&&(K.lineCap=an=n),t!=rn&&K.setLineDash(rn=t)}function _n(l,e,t,n){e!=on&&(K.fillStyle=on=e),l!=fn&&(K.font=fn=l),t!=cn&&(K.textAlign=cn=t),n!=hn&&(K.textBaseline=hn=n)}function bn(l,e,t,n,i=0){if(n.length>0&&l.auto(k,mn)&&(null==e||null==e.min)){let e=Q(Lt,0),o=Q(en,n.length-1),s=null==t.min?function(l,e,t,n=0,i=!1){let o=i?V:U,s=i?j:N;[e,t]=o(l,e,t);let r=l[e],u=l[e];if(e>-1)if(1==n)r=l[e],u=l[t];else if(-1==n)r=l[t],u=l[e];else for(let n=e;t>=n;n++){let e=l[n];s(e)&&(r>e?r=e:e>u&&(u=e))}return[r??gl,u??-gl]}(n,e,o,i,3==l.distr):[t.min,t.max];l.min=al(l.min,t.min=s[0]),l.max=fl(l.max,t.max=s[1])}}k.setData=gn;const vn={min:null,max:null};function kn(l,e){let t=e?pl[l].points:pl[l];t._stroke=t.stroke(k,l),t._fill=t.fill(k,l)}function yn(l,e){let t=e?pl[l].points:pl[l],{stroke:n,fill:i,clip:o,flags:s,_stroke:r=t._stroke,_fill:u=t._fill,_width:a=t.width}=t._paths;a=Al(a*y,3);let f=null,c=a%2/2;e&&null==u&&(u=a>0?"#fff":r);let h=1==t.pxAlign&&c>0;if(h&&K.translate(c,c),!e){let l=Qe-a/2,e=lt-a/2,t=ot+a,n=st+a;f=new Path2D,f.rect(l,e,t,n)}e?Sn(r,a,t.dash,t.cap,u,n,i,s,o):function(l,e,t,n,i,o,s,r,u,a,f){let c=!1;0!=u&&Tl.forEach(((h,d)=>{if(h.series[0]==l){let l,p=pl[h.series[1]],m=g[h.series[1]],x=(p._paths||Hl).band;Gl(x)&&(x=1==h.dir?x[0]:x[1]);let w=null;p.show&&x&&function(l,e,t){for(e=Q(e,0),t=Q(t,l.length-1);t>=e;){if(null!=l[e])return!0;e++}return!1}(m,Lt,en)?(w=h.fill(k,d)||o,l=p._paths.clip):x=null,Sn(e,t,n,i,w,s,r,u,a,f,l,x),c=!0}})),c||Sn(e,t,n,i,o,s,r,u,a,f)}(l,r,a,t.dash,t.cap,u,n,i,s,f,o),h&&K.translate(-c,-c)}const Mn=3;function Sn(l,e,t,n,i,o,s,r,u,a,f,c){wn(l,e,t,n,i),(u||a||c)&&(K.save(),u&&K.clip(u),a&&K.clip(a)),c?(r&Mn)==Mn?(K.clip(c),f&&K.clip(f),En(i,s),Tn(l,o,e)):2&r?(En(i,s),K.clip(c),Tn(l,o,e)):1&r&&(K.save(),K.clip(c),f&&K.clip(f),En(i,s),K.restore(),Tn(l,o,e)):(En(i,s),Tn(l,o,e)),(u||a||c)&&K.restore()}function Tn(l,e,t){t>0&&(e instanceof Map?e.forEach(((l,e)=>{K.strokeStyle=nn=e,K.stroke(l)})):null!=e&&l&&K.stroke(e))}function En(l,e){e instanceof Map?e.forEach(((l,e)=>{K.fillStyle=on=e,K.fill(l)})):null!=e&&l&&K.fill(e)}function zn(l,e,t,n,i,o,s,r,u,a){let f=s%2/2;1==tl&&K.translate(f,f),wn(r,s,u,a,r),K.beginPath();let c,h,d,p,m=i+(0==n||3==n?-o:o);0==t?(h=i,p=m):(c=i,d=m);for(let n=0;l.length>n;n++)null!=e[n]&&(0==t?c=d=l[n]:h=p=l[n],K.moveTo(c,h),K.lineTo(d,p));K.stroke(),1==tl&&K.translate(-f,-f)}function Dn(l){let e=!0;return xl.forEach(((t,n)=>{if(!t.show)return;let i=vl[t.scale];if(null==i.min)return void(t._show&&(e=!1,t._show=!1,An(!1)));t._show||(e=!1,t._show=!0,An(!1));let o=t.side,s=o%2,{min:r,max:u}=i,[a,f]=function(l,e,t,n){let i,o=xl[l];if(n>0){let s=o._space=o.space(k,l,e,t,n);i=Zt(e,t,o._incrs=o.incrs(k,l,e,t,n,s),n,s)}else i=[0,0];return o._found=i}(n,r,u,0==s?Ie:Le);if(0==f)return;let c=t._splits=t.splits(k,n,r,u,a,f,2==i.distr),h=2==i.distr?c.map((l=>pn[l])):c,d=2==i.distr?pn[c[1]]-pn[c[0]]:a,p=t._values=t.values(k,t.filter(k,h,n,f,d),n,f,d);t._rotate=2==o?t.rotate(k,p,n,f):0;let m=t._size;t._size=ul(t.size(k,p,n,l)),null!=m&&t._size!=m&&(e=!1)})),e}function Pn(l){let e=!0;return Ft.forEach(((t,n)=>{let i=t(k,n,Ct,l);i!=Rt[n]&&(e=!1),Rt[n]=i})),e}function An(l){pl.forEach(((e,t)=>{t>0&&(e._paths=null,l&&(1==M?(e.min=null,e.max=null):e.facets.forEach((l=>{l.min=null,l.max=null}))))}))}let Wn,Yn,Cn,Hn,Fn,Rn,Gn,In,Ln,On,Nn,jn,Un=!1,Vn=!1,Bn=[];function $n(){Vn=!1;for(let l=0;Bn.length>l;l++)Ci(...Bn[l]);Bn.length=0}function Jn(){Un||(Jl(qn),Un=!0)}function qn(){if(ht&&(function(){for(let l in vl){let e=vl[l];null==Kl[l]&&(null==e.min||null!=Kl[El]&&e.auto(k,mn))&&(Kl[l]=vn)}for(let l in vl){let e=vl[l];null==Kl[l]&&null!=e.from&&null!=Kl[e.from]&&(Kl[l]=vn)}null!=Kl[El]&&An(!0);let l={};for(let e in Kl){let t=Kl[e];if(null!=t){let n=l[e]=Vl(vl[e],Nl);if(null!=t.min)Bl(n,t);else if(e!=El||2==M)if(0==Gt&&null==n.from){let l=n.range(k,null,null,e);n.min=l[0],n.max=l[1]}else n.min=gl,n.max=-gl}}if(Gt>0){pl.forEach(((e,t)=>{if(1==M){let n=e.scale,i=Kl[n];if(null==i)return;let o=l[n];if(0==t){let l=o.range(k,o.min,o.max,n);o.min=l[0],o.max=l[1],Lt=L(o.min,g[0]),en=L(o.max,g[0]),en-Lt>1&&(o.min>g[0][Lt]&&Lt++,g[0][en]>o.max&&en--),e.min=pn[Lt],e.max=pn[en]}else e.show&&e.auto&&bn(o,i,e,g[t],e.sorted);e.idxs[0]=Lt,e.idxs[1]=en}else if(t>0&&e.show&&e.auto){let[n,i]=e.facets,o=n.scale,s=i.scale,[r,u]=g[t],a=l[o],f=l[s];null!=a&&bn(a,Kl[o],n,r,n.sorted),null!=f&&bn(f,Kl[s],i,u,i.sorted),e.min=i.min,e.max=i.max}}));for(let e in l){let t=l[e],n=Kl[e];if(null==t.from&&(null==n||null==n.min)){let l=t.range(k,t.min==gl?null:t.min,t.max==-gl?null:t.max,e);t.min=l[0],t.max=l[1]}}}for(let e in l){let t=l[e];if(null!=t.from){let n=l[t.from];if(null==n.min)t.min=t.max=null;else{let l=t.range(k,n.min,n.max,e);t.min=l[0],t.max=l[1]}}}let e={},t=!1;for(let n in l){let i=l[n],o=vl[n];if(o.min!=i.min||o.max!=i.max){o.min=i.min,o.max=i.max;let l=o.distr;o._min=3==l?dl(o.min):4==l?ml(o.min,o.asinh):100==l?o.fwd(o.min):o.min,o._max=3==l?dl(o.max):4==l?ml(o.max,o.asinh):100==l?o.fwd(o.max):o.max,e[n]=t=!0}}if(t){pl.forEach(((l,t)=>{2==M?t>0&&e.y&&(l._paths=null):e[l.scale]&&(l._paths=null)}));for(let l in e)mt=!0,Ci("setScale",l);re&&oe.left>=0&&(xt=_t=!0)}for(let l in Kl)Kl[l]=null}(),ht=!1),mt&&(function(){let l=!1,e=0;for(;!l;){e++;let t=Dn(e),n=Pn(e);l=e==yt||t&&n,l||(kt(k.width,k.height),pt=!0)}}(),mt=!1),pt){if(E(ll,s,Oe),E(ll,i,Ne),E(ll,t,Ie),E(ll,n,Le),E(el,s,Oe),E(el,i,Ne),E(el,t,Ie),E(el,n,Le),E(X,t,Fe),E(X,n,Ge),O.width=rl(Fe*y),O.height=rl(Ge*y),xl.forEach((({_el:e,_show:t,_size:n,_pos:i,side:o})=>{if(null!=e)if(t){let t=o%2==1;E(e,t?"left":"top",i-(3===o||0===o?n:0)),E(e,t?"width":"height",n),E(e,t?"top":"left",t?Ne:Oe),E(e,t?"height":"width",t?Le:Ie),T(e,l)}else S(e,l)})),nn=on=sn=un=an=fn=cn=hn=rn=null,dn=1,_i(!0),Oe!=je||Ne!=Ke||Ie!=Xe||Le!=Ze){An(!1);let l=Ie/Xe,e=Le/Ze;if(re&&!xt&&oe.left>=0){oe.left*=l,oe.top*=e,Cn&&A(Cn,rl(oe.left),0,Ie,Le),Hn&&A(Hn,0,rl(oe.top),Ie,Le);for(let t=0;Dt.length>t;t++){let n=Dt[t];null!=n&&(Pt[t]*=l,At[t]*=e,A(n,ul(Pt[t]),ul(At[t]),Ie,Le))}}if(ei.show&&!wt&&ei.left>=0&&ei.width>0){ei.left*=l,ei.width*=l,ei.top*=e,ei.height*=e;for(let l in ki)E(ti,l,ei[l])}je=Oe,Ke=Ne,Xe=Ie,Ze=Le}Ci("setSize"),pt=!1}Fe>0&&Ge>0&&(K.clearRect(0,0,O.width,O.height),Ci("drawClear"),Pl.forEach((l=>l())),Ci("draw")),ei.show&&wt&&(ni(ei),wt=!1),re&&xt&&(xi(null,!0,!1),xt=!1),ie.show&&ie.live&&_t&&(mi(),_t=!1),F||(F=!0,k.status=1,Ci("ready")),mn=!1,Un=!1}function Kn(l,e){let t=vl[l];if(null==t.from){if(0==Gt){let n=t.range(k,e.min,e.max,l);e.min=n[0],e.max=n[1]}if(e.min>e.max){let l=e.min;e.min=e.max,e.max=l}if(Gt>1&&null!=e.min&&null!=e.max&&1e-16>e.max-e.min)return;l==El&&2==t.distr&&Gt>0&&(e.min=L(e.min,g[0]),e.max=L(e.max,g[0]),e.min==e.max&&e.max++),Kl[l]=e,ht=!0,Jn()}}k.batch=function(l,e=!1){Un=!0,Vn=e,l(k),qn(),e&&Bn.length>0&&queueMicrotask($n)},k.redraw=(l,e)=>{mt=e||!1,!1!==l?ii(El,jl.min,jl.max):Jn()},k.setScale=Kn;let Xn=!1;const Zn=oe.drag;let Qn=Zn.x,li=Zn.y;re&&(oe.x&&(Wn=D("u-cursor-x",el)),oe.y&&(Yn=D("u-cursor-y",el)),0==jl.ori?(Cn=Wn,Hn=Yn):(Cn=Yn,Hn=Wn),Nn=oe.left,jn=oe.top);const ei=k.select=Bl({show:!0,over:!0,left:0,width:0,top:0,height:0},u.select),ti=ei.show?D("u-select",ei.over?el:ll):null;function ni(l,e){if(ei.show){for(let e in l)ei[e]=l[e],e in ki&&E(ti,e,l[e]);!1!==e&&Ci("setSelect")}}function ii(l,e,t){Kn(l,{min:e,max:t})}function oi(e,t,n,i){null!=t.focus&&function(l){if(l!=ui){let e=null==l,t=1!=Tt.alpha;pl.forEach(((n,i)=>{if(1==M||i>0){let o=e||0==i||i==l;n._focus=e?null:o,t&&function(l,e){pl[l].alpha=e,re&&null!=Dt[l]&&(Dt[l].style.opacity=e),se&&me[l]&&(me[l].style.opacity=e)}(i,o?1:Tt.alpha)}})),ui=l,t&&Jn()}}(e),null!=t.show&&pl.forEach(((n,i)=>{0>=i||e!=i&&null!=e||(n.show=t.show,function(e){if(pl[e].show)se&&T(me[e],l);else if(se&&S(me[e],l),re){let l=zt?Dt[0]:Dt[e];null!=l&&A(l,-10,-10,Ie,Le)}}(i),2==M?(ii(n.facets[0].scale,null,null),ii(n.facets[1].scale,null,null)):ii(n.scale,null,null),Jn())})),!1!==n&&Ci("setSeries",e,t),i&&Ii("setSeries",k,e,t)}let si,ri,ui;k.setSelect=ni,k.setSeries=oi,k.addBand=function(l,e){l.fill=bl(l.fill||null),l.dir=Q(l.dir,-1),Tl.splice(e=null==e?Tl.length:e,0,l)},k.setBand=function(l,e){Bl(Tl[l],e)},k.delBand=function(l){null==l?Tl.length=0:Tl.splice(l,1)};const ai={focus:!0};function fi(l,e,t){let n=vl[e];t&&(l=l/y-(1==n.ori?Ne:Oe));let i=Ie;1==n.ori&&(i=Le,l=i-l),-1==n.dir&&(l=i-l);let o=n._min,s=o+l/i*(n._max-o),r=n.distr;return 3==r?cl(10,s):4==r?((l,e=1)=>nl.sinh(l)*e)(s,n.asinh):100==r?n.bwd(s):s}function ci(l,e){E(ti,s,ei.left=l),E(ti,t,ei.width=e)}function hi(l,e){E(ti,i,ei.top=l),E(ti,n,ei.height=e)}se&&Et&&Ce(p,ce,(l=>{oe._lock||(Mt(l),null!=ui&&oi(null,ai,!0,Fi.setSeries))})),k.valToIdx=l=>L(l,g[0]),k.posToIdx=function(l,e){return L(fi(l,El,e),g[0],Lt,en)},k.posToVal=fi,k.valToPos=(l,e,t)=>0==vl[e].ori?P(l,vl[e],t?ot:Ie,t?Qe:0):W(l,vl[e],t?st:Le,t?lt:0),k.setCursor=(l,e,t)=>{Nn=l.left,jn=l.top,xi(null,e,t)};let di=0==jl.ori?ci:hi,pi=1==jl.ori?ci:hi;function mi(l,e){if(null!=l&&(l.idxs?l.idxs.forEach(((l,e)=>{te[e]=l})):(l=>void 0===l)(l.idx)||te.fill(l.idx),ie.idx=te[0]),se&&ie.live){for(let l=0;pl.length>l;l++)(l>0||1==M&&!xe)&&gi(l,te[l]);!function(){if(se&&ie.live)for(let l=2==M?1:0;pl.length>l;l++){if(0==l&&xe)continue;let e=ie.values[l],t=0;for(let n in e)ge[l][t++].firstChild.nodeValue=e[n]}}()}_t=!1,!1!==e&&Ci("setLegend")}function gi(l,e){let t,n=pl[l],i=0==l&&2==Ul?pn:g[l];xe?t=n.values(k,l,e)??we:(t=n.value(k,null==e?null:i[e],l,e),t=null==t?we:{_:t}),ie.values[l]=t}function xi(l,e,t){let n;Ln=Nn,On=jn,[Nn,jn]=oe.move(k,Nn,jn),oe.left=Nn,oe.top=jn,re&&(Cn&&A(Cn,rl(Nn),0,Ie,Le),Hn&&A(Hn,0,rl(jn),Ie,Le)),si=gl,ri=null;let i=0==jl.ori?Ie:Le,o=1==jl.ori?Ie:Le;if(0>Nn||0==Gt||Lt>en){n=oe.idx=null;for(let l=0;pl.length>l;l++){let e=Dt[l];null!=e&&A(e,-10,-10,Ie,Le)}Et&&oi(null,ai,!0,null==l&&Fi.setSeries),ie.live&&(te.fill(n),_t=!0)}else{let l,e,t;1==M&&(l=0==jl.ori?Nn:jn,e=fi(l,El),n=oe.idx=L(e,g[0],Lt,en),t=$l(g[0][n],jl,i,0));let s=-10,r=-10,u=0,a=0,f=!0,c="",h="";for(let l=2==M?1:0;pl.length>l;l++){let d=pl[l],p=te[l],m=null==p?null:1==M?g[l][p]:g[l][1][p],x=oe.dataIdx(k,l,n,e),w=null==x?null:1==M?g[l][x]:g[l][1][x];if(_t=_t||w!=m||x!=p,te[l]=x,l>0&&d.show){let e=null==x?-10:x==n?t:$l(1==M?g[0][x]:g[l][0][x],jl,i,0),p=null==w?-10:ql(w,1==M?vl[d.scale]:vl[d.facets[1].scale],o,0);if(Et&&null!=w){let e=1==jl.ori?Nn:jn,t=ol(Tt.dist(k,l,x,p,e));if(si>t){let n=Tt.bias;if(0!=n){let i=fi(e,d.scale),o=0>i?-1:1;o!=(0>w?-1:1)||(1==o?1==n?i>w:w>i:1==n?w>i:i>w)||(si=t,ri=l)}else si=t,ri=l}}if(_t||zt){let t,n;0==jl.ori?(t=e,n=p):(t=p,n=e);let i,o,d,m,g,x,w=!0,_=St.bbox;if(null!=_){w=!1;let e=_(k,l);d=e.left,m=e.top,i=e.width,o=e.height}else d=t,m=n,i=o=St.size(k,l);if(x=St.fill(k,l),g=St.stroke(k,l),zt)l!=ri||si>Tt.prox||(s=d,r=m,u=i,a=o,f=w,c=x,h=g);else{let e=Dt[l];null!=e&&(Pt[l]=d,At[l]=m,H(e,i,o,w),Y(e,x,g),A(e,ul(d),ul(m),Ie,Le))}}}}if(zt){let l=Tt.prox;if(_t||(null==ui?l>=si:si>l||ri!=ui)){let l=Dt[0];null!=l&&(Pt[0]=s,At[0]=r,H(l,u,a,f),Y(l,c,h),A(l,ul(s),ul(r),Ie,Le))}}}if(ei.show&&Xn)if(null!=l){let[e,t]=Fi.scales,[n,s]=Fi.match,[r,u]=l.cursor.sync.scales,a=l.cursor.drag;if(Qn=a._x,li=a._y,Qn||li){let a,f,c,h,d,{left:p,top:m,width:g,height:x}=l.select,w=l.scales[r].ori,_=l.posToVal,b=null!=e&&n(e,r),v=null!=t&&s(t,u);b&&Qn?(0==w?(a=p,f=g):(a=m,f=x),c=vl[e],h=$l(_(a,r),c,i,0),d=$l(_(a+f,r),c,i,0),di(al(h,d),ol(d-h))):di(0,i),v&&li?(1==w?(a=p,f=g):(a=m,f=x),c=vl[t],h=ql(_(a,u),c,o,0),d=ql(_(a+f,u),c,o,0),pi(al(h,d),ol(d-h))):pi(0,o)}else yi()}else{let l=ol(Ln-Fn),e=ol(On-Rn);if(1==jl.ori){let t=l;l=e,e=t}Qn=Zn.x&&l>=Zn.dist,li=Zn.y&&e>=Zn.dist;let t,n,s=Zn.uni;null!=s?Qn&&li&&(Qn=l>=s,li=e>=s,Qn||li||(e>l?li=!0:Qn=!0)):Zn.x&&Zn.y&&(Qn||li)&&(Qn=li=!0),Qn&&(0==jl.ori?(t=Gn,n=Nn):(t=In,n=jn),di(al(t,n),ol(n-t)),li||pi(0,o)),li&&(1==jl.ori?(t=Gn,n=Nn):(t=In,n=jn),pi(al(t,n),ol(n-t)),Qn||di(0,i)),Qn||li||(di(0,0),pi(0,0))}if(Zn._x=Qn,Zn._y=li,null==l){if(t){if(null!=Ri){let[l,e]=Fi.scales;Fi.values[0]=null!=l?fi(0==jl.ori?Nn:jn,l):null,Fi.values[1]=null!=e?fi(1==jl.ori?Nn:jn,e):null}Ii(f,k,Nn,jn,Ie,Le,n)}if(Et){let l=t&&Fi.setSeries,e=Tt.prox;null==ui?si>e||oi(ri,ai,!0,l):si>e?oi(null,ai,!0,l):ri!=ui&&oi(ri,ai,!0,l)}}_t&&(ie.idx=n,mi()),!1!==e&&Ci("setCursor")}k.setLegend=mi;let wi=null;function _i(l=!1){l?wi=null:(wi=el.getBoundingClientRect(),Ci("syncRect",wi))}function bi(l,e,t,n,i,o){oe._lock||Xn&&null!=l&&0==l.movementX&&0==l.movementY||(vi(l,e,t,n,i,o,0,!1,null!=l),null!=l?xi(null,!0,!0):xi(e,!0,!1))}function vi(l,e,t,n,i,o,s,r,u){if(null==wi&&_i(!1),Mt(l),null!=l)t=l.clientX-wi.left,n=l.clientY-wi.top;else{if(0>t||0>n)return Nn=-10,void(jn=-10);let[l,s]=Fi.scales,r=e.cursor.sync,[u,a]=r.values,[f,c]=r.scales,[h,d]=Fi.match,p=e.axes[0].side%2==1,m=0==jl.ori?Ie:Le,g=1==jl.ori?Ie:Le,x=p?o:i,w=p?i:o,_=p?n:t,b=p?t:n;if(t=null!=f?h(l,f)?C(u,vl[l],m,0):-10:m*(_/x),n=null!=c?d(s,c)?C(a,vl[s],g,0):-10:g*(b/w),1==jl.ori){let l=t;t=n,n=l}}!u||null!=e&&e.cursor.event.type!=f||(t>1&&Ie-1>t||(t=zl(t,Ie)),n>1&&Le-1>n||(n=zl(n,Le))),r?(Fn=t,Rn=n,[Gn,In]=oe.move(k,t,n)):(Nn=t,jn=n)}Object.defineProperty(k,"rect",{get:()=>(null==wi&&_i(!1),wi)});const ki={width:0,height:0,left:0,top:0};function yi(){ni(ki,!1)}let Mi,Si,Ti,Ei;function zi(l,e,t,n,i,o){Xn=!0,Qn=li=Zn._x=Zn._y=!1,vi(l,e,t,n,i,o,0,!0,!1),null!=l&&(Ce(h,b,Di,!1),Ii(c,k,Gn,In,Ie,Le,null));let{left:s,top:r,width:u,height:a}=ei;Mi=s,Si=r,Ti=u,Ei=a}function Di(l,e,t,n,i,o){Xn=Zn._x=Zn._y=!1,vi(l,e,t,n,i,o,0,!1,!0);let{left:s,top:r,width:u,height:a}=ei,f=u>0||a>0,c=Mi!=s||Si!=r||Ti!=u||Ei!=a;if(f&&c&&ni(ei),Zn.setScale&&f&&c){let l=s,e=u,t=r,n=a;if(1==jl.ori&&(l=r,e=a,t=s,n=u),Qn&&ii(El,fi(l,El),fi(l+e,El)),li)for(let l in vl){let e=vl[l];l!=El&&null==e.from&&e.min!=gl&&ii(l,fi(t+n,l),fi(t,l))}yi()}else oe.lock&&(oe._lock=!oe._lock,xi(e,!0,null!=l));null!=l&&(He(h,b),Ii(h,k,Nn,jn,Ie,Le,null))}function Pi(l){oe._lock||(Mt(l),xn(),yi(),null!=l&&Ii(m,k,Nn,jn,Ie,Le,null))}function Ai(){xl.forEach(ln),vt(k.width,k.height,!0)}G(x,v,Ai);const Wi={};Wi.mousedown=zi,Wi.mousemove=bi,Wi.mouseup=Di,Wi.dblclick=Pi,Wi.setSeries=(l,e,t,n)=>{-1!=(t=(0,Fi.match[2])(k,e,t))&&oi(t,n,!0,!1)},re&&(Ce(c,el,zi),Ce(f,el,bi),Ce(d,el,(l=>{Mt(l),_i(!1)})),Ce(p,el,(function(l){if(oe._lock)return;Mt(l);let e=Xn;if(Xn){let l,e,t=!0,n=!0,i=10;0==jl.ori?(l=Qn,e=li):(l=li,e=Qn),l&&e&&(t=i>=Nn||Nn>=Ie-i,n=i>=jn||jn>=Le-i),l&&t&&(Nn=Gn>Nn?0:Ie),e&&n&&(jn=In>jn?0:Le),xi(null,!0,!0),Xn=!1}Nn=-10,jn=-10,te.fill(null),xi(null,!0,!0),e&&(Xn=e)})),Ce(m,el,Pi),It.add(k),k.syncRect=_i);const Yi=k.hooks=u.hooks||{};function Ci(l,e,t){Vn?Bn.push([l,e,t]):l in Yi&&Yi[l].forEach((l=>{l.call(null,k,e,t)}))}(u.plugins||[]).forEach((l=>{for(let e in l.hooks)Yi[e]=(Yi[e]||[]).concat(l.hooks[e])}));const Hi=(l,e,t)=>t,Fi=Bl({key:null,setSeries:!1,filters:{pub:Ml,sub:Ml},scales:[El,pl[1]?pl[1].scale:null],match:[Sl,Sl,Hi],values:[null,null]},oe.sync);2==Fi.match.length&&Fi.match.push(Hi),oe.sync=Fi;const Ri=Fi.key,Gi=dt(Ri);function Ii(l,e,t,n,i,o,s){Fi.filters.pub(l,e,t,n,i,o,s)&&Gi.pub(l,e,t,n,i,o,s)}function Li(){Ci("init",u,g),gn(g||u.data,!1),Kl[El]?Kn(El,Kl[El]):xn(),wt=ei.show&&(ei.width>0||ei.height>0),xt=_t=!0,vt(u.width,u.height)}return Gi.sub(k),k.pub=function(l,e,t,n,i,o,s){Fi.filters.sub(l,e,t,n,i,o,s)&&Wi[l](null,e,t,n,i,o,s)},k.destroy=function(){Gi.unsub(k),It.delete(k),Pe.clear(),I(x,v,Ai),R.remove(),ce?.remove(),Ci("destroy")},pl.forEach(Yt),xl.forEach((function(l,e){if(l._show=l.show,l.show){let t=vl[l.scale];null==t&&(l.scale=l.side%2?pl[1].scale:El,t=vl[l.scale]);let n=t.time;l.size=bl(l.size),l.space=bl(l.space),l.rotate=bl(l.rotate),Gl(l.incrs)&&l.incrs.forEach((l=>{!Wl.has(l)&&Wl.set(l,Yl(l))})),l.incrs=bl(l.incrs||(2==t.distr?ae:n?1==hl?ke:Se:fe)),l.splits=bl(l.splits||(n&&1==t.distr?Ql:3==t.distr?Je:4==t.distr?qe:$e)),l.stroke=bl(l.stroke),l.grid.stroke=bl(l.grid.stroke),l.ticks.stroke=bl(l.ticks.stroke),l.border.stroke=bl(l.border.stroke);let i=l.values;l.values=Gl(i)&&!Gl(i[0])?bl(i):n?Gl(i)?De(Xl,ze(i,Zl)):Ll(i)?function(l,e){let t=ne(e);return(e,n)=>n.map((e=>t(l(e))))}(Xl,i):i||le:i||Be,l.filter=bl(l.filter||(3>t.distr||10!=t.log?3==t.distr&&2==t.log?tt:kl:et)),l.font=Qt(l.font),l.labelFont=Qt(l.labelFont),l._size=l.size(k,null,e,0),l._space=l._rotate=l._incrs=l._found=l._splits=l._values=null,l._size>0&&(Ct[e]=!0,l._el=D("u-axis",X))}})),_?_ instanceof HTMLElement?(_.appendChild(R),Li()):_(k,Li):Li(),k}en.assign=Bl,en.fmtNum=tl,en.rangeNum=Z,en.rangeLog=B,en.rangeAsinh=$,en.orient=pt,en.pxRatio=y,en.join=function(l,e){if(function(l){let e=l[0][0],t=e.length;for(let n=1;l.length>n;n++){let i=l[n][0];if(i.length!=t)return!1;if(i!=e)for(let l=0;t>l;l++)if(i[l]!=e[l])return!1}return!0}(l)){let e=l[0].slice();for(let t=1;l.length>t;t++)e.push(...l[t].slice(1));return function(l,e=100){const t=l.length;if(1>=t)return!0;let n=0,i=t-1;for(;i>=n&&null==l[n];)n++;for(;i>=n&&null==l[i];)i--;if(n>=i)return!0;const o=fl(1,sl((i-n+1)/e));for(let e=l[n],t=n+o;i>=t;t+=o){const n=l[t];if(null!=n){if(e>=n)return!1;e=n}}return!0}(e[0])||(e=function(l){let e=l[0],t=e.length,n=Array(t);for(let l=0;n.length>l;l++)n[l]=l;n.sort(((l,t)=>e[l]-e[t]));let i=[];for(let e=0;l.length>e;e++){let o=l[e],s=Array(t);for(let l=0;t>l;l++)s[l]=o[n[l]];i.push(s)}return i}(e)),e}let t=new Set;for(let e=0;l.length>e;e++){let n=l[e][0],i=n.length;for(let l=0;i>l;l++)t.add(n[l])}let n=[Array.from(t).sort(((l,e)=>l-e))],i=n[0].length,o=new Map;for(let l=0;i>l;l++)o.set(n[0][l],l);for(let t=0;l.length>t;t++){let s=l[t],r=s[0];for(let l=1;s.length>l;l++){let u=s[l],a=Array(i).fill(void 0),f=e?e[t][l]:1,c=[];for(let l=0;u.length>l;l++){let e=u[l],t=o.get(r[l]);null===e?0!=f&&(a[t]=e,2==f&&c.push(t)):a[t]=e}$l(a,c,i),n.push(a)}}return n},en.fmtDate=ne,en.tzDate=function(l,e){let t;return"UTC"==e||"Etc/UTC"==e?t=new Date(+l+6e4*l.getTimezoneOffset()):e==ie?t=l:(t=new Date(l.toLocaleString("en-US",{timeZone:e})),t.setMilliseconds(l.getMilliseconds())),t},en.sync=dt;{en.addGap=function(l,e,t){let n=l[l.length-1];n&&n[0]==e?n[1]=t:l.push([e,t])},en.clipGaps=wt;let l=en.paths={points:Wt};l.linear=Ft,l.stepped=function(l){const e=Q(l.align,1),t=Q(l.ascDesc,!1),n=Q(l.alignGaps,0),i=Q(l.extend,!1);return(l,o,s,r)=>pt(l,o,((u,a,f,c,h,d,p,m,g,x,w)=>{[s,r]=U(f,s,r);let _=u.pxRound,{left:b,width:v}=l.bbox,k=l=>_(d(l,c,x,m)),M=l=>_(p(l,h,w,g)),S=0==c.ori?Mt:St;const T={stroke:new Path2D,fill:null,clip:null,band:null,gaps:null,flags:1},E=T.stroke,z=c.dir*(0==c.ori?1:-1);let D=M(f[1==z?s:r]),P=k(a[1==z?s:r]),A=P,W=P;i&&-1==e&&(W=b,S(E,W,D)),S(E,P,D);for(let l=1==z?s:r;l>=s&&r>=l;l+=z){let t=f[l];if(null==t)continue;let n=k(a[l]),i=M(t);1==e?S(E,n,D):S(E,A,i),S(E,n,i),D=i,A=n}let Y=A;i&&1==e&&(Y=b+v,S(E,Y,D));let[C,H]=mt(l,o);if(null!=u.fill||0!=C){let e=T.fill=new Path2D(E),t=M(u.fillTo(l,o,u.min,u.max,C));S(e,Y,t),S(e,W,t)}if(!u.spanGaps){let i=[];i.push(..._t(a,f,s,r,z,k,n));let h=u.width*y/2,d=t||1==e?h:-h,p=t||-1==e?-h:h;i.forEach((l=>{l[0]+=d,l[1]+=p})),T.gaps=i=u.gaps(l,o,s,r,i),T.clip=wt(i,c.ori,m,g,x,w)}return 0!=H&&(T.band=2==H?[xt(l,o,s,r,E,-1),xt(l,o,s,r,E,1)]:xt(l,o,s,r,E,H)),T}))},l.bars=function(l){const e=Q((l=l||Hl).size,[.6,gl,1]),t=l.align||0,n=l.gap||0;let i=l.radius;i=null==i?[0,0]:"number"==typeof i?[i,0]:i;const o=bl(i),s=1-e[0],r=Q(e[1],gl),u=Q(e[2],1),a=Q(l.disp,Hl),f=Q(l.each,(()=>{})),{fill:c,stroke:h}=a;return(l,e,i,d)=>pt(l,e,((p,m,g,x,w,_,b,v,k,M,S)=>{let T,E,z=p.pxRound,D=t,P=n*y,A=r*y,W=u*y;0==x.ori?[T,E]=o(l,e):[E,T]=o(l,e);const Y=x.dir*(0==x.ori?1:-1);let C,H,F,R=0==x.ori?Tt:Et,G=0==x.ori?f:(l,e,t,n,i,o,s)=>{f(l,e,t,i,n,s,o)},I=Q(l.bands,Fl).find((l=>l.series[0]==e)),L=p.fillTo(l,e,p.min,p.max,null!=I?I.dir:0),O=z(b(L,w,S,k)),N=M,j=z(p.width*y),U=!1,V=null,B=null,$=null,J=null;null==c||0!=j&&null==h||(U=!0,V=c.values(l,e,i,d),B=new Map,new Set(V).forEach((l=>{null!=l&&B.set(l,new Path2D)})),j>0&&($=h.values(l,e,i,d),J=new Map,new Set($).forEach((l=>{null!=l&&J.set(l,new Path2D)}))));let{x0:q,size:K}=a;if(null!=q&&null!=K){D=1,m=q.values(l,e,i,d),2==q.unit&&(m=m.map((e=>l.posToVal(v+e*M,x.key,!0))));let t=K.values(l,e,i,d);H=2==K.unit?t[0]*M:_(t[0],x,M,v)-_(0,x,M,v),N=Rt(m,g,_,x,M,v,N),F=N-H+P}else N=Rt(m,g,_,x,M,v,N),F=N*s+P,H=N-F;1>F&&(F=0),H/2>j||(j=0),5>F&&(z=vl);let X=F>0;H=z(wl(N-F-(X?j:0),W,A)),C=(0==D?H/2:D==Y?0:H)-D*Y*((0==D?P/2:0)+(X?j/2:0));const Z={stroke:null,fill:null,clip:null,band:null,gaps:null,flags:0},ll=U?null:new Path2D;let el=null;if(null!=I)el=l.data[I.series[1]];else{let{y0:t,y1:n}=a;null!=t&&null!=n&&(g=n.values(l,e,i,d),el=t.values(l,e,i,d))}let tl=T*H,nl=E*H;for(let t=1==Y?i:d;t>=i&&d>=t;t+=Y){let n=g[t];if(null==n)continue;if(null!=el){let l=el[t]??0;if(n-l==0)continue;O=b(l,w,S,k)}let i=_(2!=x.distr||null!=a?m[t]:t,x,M,v),o=b(Q(n,L),w,S,k),s=z(i-C),r=z(fl(o,O)),u=z(al(o,O)),f=r-u;if(null!=n){let i=0>n?nl:tl,o=0>n?tl:nl;U?(j>0&&null!=$[t]&&R(J.get($[t]),s,u+sl(j/2),H,fl(0,f-j),i,o),null!=V[t]&&R(B.get(V[t]),s,u+sl(j/2),H,fl(0,f-j),i,o)):R(ll,s,u+sl(j/2),H,fl(0,f-j),i,o),G(l,e,t,s-j/2,u,H+j,f)}}return j>0?Z.stroke=U?J:ll:U||(Z._fill=0==p.width?p._fill:p._stroke??p._fill,Z.width=0),Z.fill=U?B:ll,Z}))},l.spline=function(l){return function(l,e){const t=Q(e?.alignGaps,0);return(e,n,i,o)=>pt(e,n,((s,r,u,a,f,c,h,d,p,m,g)=>{[i,o]=U(u,i,o);let x,w,_,b=s.pxRound,v=l=>b(c(l,a,m,d)),k=l=>b(h(l,f,g,p));0==a.ori?(x=kt,_=Mt,w=Pt):(x=yt,_=St,w=At);const y=a.dir*(0==a.ori?1:-1);let M=v(r[1==y?i:o]),S=M,T=[],E=[];for(let l=1==y?i:o;l>=i&&o>=l;l+=y)if(null!=u[l]){let e=v(r[l]);T.push(S=e),E.push(k(u[l]))}const z={stroke:l(T,E,x,_,w,b),fill:null,clip:null,band:null,gaps:null,flags:1},D=z.stroke;let[P,A]=mt(e,n);if(null!=s.fill||0!=P){let l=z.fill=new Path2D(D),t=k(s.fillTo(e,n,s.min,s.max,P));_(l,S,t),_(l,M,t)}if(!s.spanGaps){let l=[];l.push(..._t(r,u,i,o,y,v,t)),z.gaps=l=s.gaps(e,n,i,o,l),z.clip=wt(l,a.ori,d,p,m,g)}return 0!=A&&(z.band=2==A?[xt(e,n,i,o,D,-1),xt(e,n,i,o,D,1)]:xt(e,n,i,o,D,A)),z}))}(Gt,l)}}return en}();

// choices.js
// What an address chose, checked against what there is: what is unknown falls back, with a sentence. Pure.

const LONGEST = 40;

function quoteText(text) {
  return `“${text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text}”`;
}

// One of `known`; `otherwise` if the address names another. `what` and `fallback` are for the sentence.
function chooseOne(value, known, { what, fallback, otherwise = "" }) {
  if (!value || known.includes(value)) return { value: value || otherwise, notes: [] };
  return { value: otherwise, notes: [`The address names the ${what} ${quoteText(value)}, which is not known here; ${fallback}.`] };
}

// A stretch of time, in seconds from the start of `length` seconds; null for an end that was not chosen.
function chooseTime({ from, to }, length) {
  const [first, last] = [readSeconds(from, 0), readSeconds(to, length)];
  const isValid = first !== null && last !== null && first < last && first < length && last > 0;
  if (isValid) return { from: from ? first : null, to: to ? last : null, notes: [] };
  return { from: null, to: null, notes: [`The address names a time (${[from, to].map((text) => quoteText(text || "")).join(" to ")}) that is not in this data; all of it is shown.`] };
}

function readSeconds(text, otherwise) {
  if (text === undefined || text === "") return otherwise;
  return /^\d{1,9}(\.\d{1,6})?$/.test(text) ? Number(text) : null;
}

// A moment of a replay; null if none was chosen.
function chooseMoment(text, length) {
  if (!text) return { at: null, notes: [] };
  const at = readSeconds(text, 0);
  if (at !== null && at <= length) return { at, notes: [] };
  return { at: null, notes: [`The address names the moment ${quoteText(text)}, which is not in this run; its end is shown.`] };
}

// The name of a message; a sentence for each part that is missing or is not a number.
function checkMessage({ topic, producer, lane, sequence }) {
  const notes = [];
  for (const [name, value] of Object.entries({ topic, producer })) if (!value) notes.push(`The address names no ${name}.`);
  for (const [name, value] of Object.entries({ lane, sequence })) {
    if (!/^\d{1,19}$/.test(value || "")) notes.push(value ? `The address names the ${name} ${quoteText(value)}, which is not a whole number.` : `The address names no ${name}.`);
  }
  return notes;
}

// format.js
// Numbers, times and words for people. Pure.

const UNKNOWN = "–";

function formatCount(value) {
  return value === null || value === undefined ? UNKNOWN : Math.round(value).toLocaleString("en-US");
}

function formatRate(value) {
  if (value === null || value === undefined) return UNKNOWN;
  return `${value < 10 && value > 0 ? value.toFixed(1) : formatCount(value)}/s`;
}

function formatUs(value) {
  if (value === "never") return "never";
  if (value === null || value === undefined) return UNKNOWN;
  const size = Math.abs(value);
  if (size < 1e3) return `${Math.round(value)} µs`;
  if (size < 1e6) return `${(value / 1e3).toFixed(size < 1e4 ? 2 : 1)} ms`;
  return `${(value / 1e6).toFixed(2)} s`;
}

// A share as people write it: "99.99 %". It is cut, not rounded: what is not everything never
// reads "100 %", and what is not nothing never reads "0 %".
function formatShare(value) {
  if (value === null || value === undefined) return "unknowable";
  if (value <= 0 || value >= 1) return `${Math.round(value * 100)} %`;
  // The first digit that shows the difference from 0 and from 1, and one more.
  const digits = Math.min(12, Math.max(1, Math.ceil(-Math.log10(Math.min(value, 1 - value))) - 1));
  const scale = 10 ** digits;
  const cut = Math.floor(value * 100 * scale + 1e-6) / scale;
  return `${Number(cut.toFixed(digits))} %`;
}

// A latency as people write it: "12 ms".
function formatBrief(us) {
  if (typeof us !== "number") return formatUs(us);
  const [value, unit] = us < 1e3 ? [us, "µs"] : us < 1e6 ? [us / 1e3, "ms"] : [us / 1e6, "s"];
  return `${value < 10 ? Number(value.toFixed(1)) : Math.round(value)} ${unit}`;
}

// The links of a fault, with arrows that no line begins with.
function formatLinks(text) {
  return String(text).replaceAll("<->", "\u00a0↔ ").replaceAll("->", "\u00a0→ ");
}

function formatRatio(value) {
  return value === null || value === undefined ? "unknowable" : Number(value.toPrecision(6)).toString();
}

function formatBytes(value) {
  if (value === null || value === undefined) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (value >= 1024 && power < units.length - 1) { value /= 1024; power += 1; }
  return `${value.toFixed(power && value < 10 ? 1 : 0)} ${units[power]}`;
}

function formatAge(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

// The last moment that a date can have.
const LAST_US = 8.64e18;

function formatTime(us) {
  return us && Math.abs(us) <= LAST_US ? new Date(us / 1000).toISOString().replace("T", " ").slice(0, 19) : UNKNOWN;
}

// The time of day with microseconds, as reports write it.
function formatClock(us) {
  if (!(Math.abs(us) <= LAST_US)) return UNKNOWN;
  const fraction = String(Math.floor(us % 1e6)).padStart(6, "0");
  return `${new Date(us / 1000).toISOString().slice(11, 19)}.${fraction}`;
}

// Any JSON value as text: names and values, without brackets. Times of day for "..._us".
function describeValue(value, name = "") {
  if (value === null || value === undefined) return "none";
  if (typeof value === "number" && name.endsWith("_us") && value > 1e15) return formatClock(value);
  if (Array.isArray(value)) return value.length ? value.map((each) => describeValue(each, name)).join("; ") : "none";
  if (typeof value !== "object") return String(value);
  const known = Object.entries(value).filter(([, each]) => each !== null && each !== "");
  return known.map(([key, each]) => `${key}${typeof each === "object" ? ":" : ""} ${describeValue(each, key)}`).join(", ") || "none";
}

function plural(count, word, words = `${word}s`) {
  return `${formatCount(count)} ${count === 1 ? word : words}`;
}

// series.js
// Ticks as series: rates from counters, percentiles from histograms. Pure.

const BUCKETS_PER_OCTAVE = 16;

function bucketEnd(bucket) {
  return 2 ** ((bucket + 1) / BUCKETS_PER_OCTAVE);
}

function bucketStart(bucket) {
  return bucket === 0 ? 1 : 2 ** (bucket / BUCKETS_PER_OCTAVE);
}

function addBuckets(histograms) {
  const total = {};
  for (const buckets of histograms) {
    for (const [bucket, count] of Object.entries(buckets)) total[bucket] = (total[bucket] || 0) + count;
  }
  return total;
}

// The upper end of the bucket with this percentile, by nearest rank. A message that never arrived
// is later than all others: "never" if the rank is among those, null without any message.
function percentile(buckets, percent, never = 0) {
  const entries = Object.entries(buckets).map(([bucket, count]) => [Number(bucket), count]).sort((a, b) => a[0] - b[0]);
  const total = entries.reduce((sum, [, count]) => sum + count, 0) + never;
  if (!total) return null;
  const rank = Math.max(Math.ceil((total * Math.round(percent * 1000)) / 100000), 1);
  let reached = 0;
  for (const [bucket, count] of entries) {
    reached += count;
    if (reached >= rank) return bucketEnd(bucket);
  }
  return "never";
}

// Ticks in the order of their times, as charts need them: a clock that was set back writes earlier
// times later. The last one that was written stays the newest for everything else.
function sortByTime(ticks) {
  return ticks.every((tick, place) => !place || ticks[place - 1].t <= tick.t) ? ticks : [...ticks].sort((a, b) => a.t - b.t);
}

// The rate of a counter between successive ticks; null where a tick lacks it or it was reset.
function rates(ticks, name) {
  return ticks.map((tick, place) => {
    const before = place ? ticks[place - 1].counters[name] : undefined;
    const now = tick.counters[name];
    if (before === undefined || now === undefined || now < before) return null;
    const seconds = (tick.t - ticks[place - 1].t) / 1e6;
    return seconds > 0 ? (now - before) / seconds : null;
  });
}

function lastRate(ticks, name, span = 5) {
  const recent = ticks.slice(-span - 1).filter((tick) => tick.counters[name] !== undefined);
  if (recent.length < 2) return null;
  const [first, last] = [recent[0], recent[recent.length - 1]];
  const seconds = (last.t - first.t) / 1e6;
  return seconds > 0 ? Math.max(0, last.counters[name] - first.counters[name]) / seconds : null;
}

// The first of these counters that the ticks have: clusters, mirrors and runs count other things.
function findCounter(ticks, names) {
  const last = ticks[ticks.length - 1];
  return last ? names.find((name) => last.counters[name] !== undefined) : undefined;
}

// What a page keeps of one stream of events.
function emptyLog() {
  return { ticks: [], faults: [], states: [], findings: {}, found: [], logs: [], end: null, meta: null };
}

function addEvents(log, events, isStart) {
  const next = isStart ? emptyLog() : { ...log, ticks: [...log.ticks], faults: [...log.faults], states: [...log.states], findings: { ...log.findings }, found: [...log.found], logs: [...log.logs] };
  for (const event of events) {
    if (event.kind === "tick") next.ticks.push({ counters: {}, gauges: {}, histograms: {}, processes: [], partitions: [], ...event });
    else if (event.kind === "fault") next.faults.push(event);
    else if (event.kind === "state") next.states.push(event);
    else if (event.kind === "finding") { next.findings[event.finding] = event; next.found.push(event); }
    else if (event.kind === "log") next.logs.push(event);
    else if (event.kind === "end") next.end = event;
    else if (event.kind === "meta") { next.meta = event; next.end = null; }
  }
  return next;
}

// model.js
// One model of a run for its page, from the stored page data of a finished run or from the events
// of a running one. Pure. Times are seconds since the Unix epoch.


const MOST_LANES = 20;
const LONGEST_GAP_S = 5;
const MOST_FAULT_ROWS = 12;

// {from, to, times, due, acknowledged, received, latency, never}: rates for each bin.
function binsOfPage(bins) {
  const seconds = bins.bin_us / 1e6;
  const start = bins.start_us / 1e6;
  const perSecond = (counts) => counts.map((count) => count / seconds);
  return {
    times: bins.due.map((_, place) => start + (place + 0.5) * seconds),
    seconds,
    due: perSecond(bins.due),
    acknowledged: perSecond(bins.acknowledged),
    received: perSecond(bins.received),
    latency: bins.latency,
    never: bins.never,
  };
}

// Rates of bins shorter than `leastS` as means over that time around each: one batch in a bin of
// 10 ms would be the only thing to see. Pure.
function smoothRates(values, seconds, leastS) {
  const reach = Math.ceil(leastS / seconds / 2 - 0.5);
  if (reach < 1) return values;
  return values.map((value, place) => {
    const near = values.slice(Math.max(0, place - reach), place + reach + 1).filter((each) => each !== null && each !== undefined);
    return value === null || value === undefined ? value : near.reduce((sum, each) => sum + each, 0) / near.length;
  });
}

const NAMES = { due: ["due", "sent"], acknowledged: ["acknowledged"], received: ["received"] };

function binsOfTicks(written) {
  const ticks = sortByTime(written);
  const pairs = ticks.slice(1).map((tick, place) => [ticks[place], tick]).filter(([before, tick]) => tick.t > before.t);
  const rate = (names) => pairs.map(([before, tick]) => {
    const name = names.find((each) => tick.counters[each] !== undefined && before.counters[each] !== undefined);
    return name && tick.counters[name] >= before.counters[name] ? ((tick.counters[name] - before.counters[name]) * 1e6) / (tick.t - before.t) : null;
  });
  return {
    times: pairs.map(([, tick]) => tick.t / 1e6),
    seconds: 1,
    due: rate(NAMES.due),
    acknowledged: rate(NAMES.acknowledged),
    received: rate(NAMES.received),
    latency: pairs.map(([, tick]) => latencyOf(tick)),
    never: pairs.map(() => 0),
  };
}

function latencyOf(tick) {
  const name = ["end_to_end", "latency", "e2e"].find((each) => tick.histograms[each]) || Object.keys(tick.histograms)[0];
  return name ? tick.histograms[name].buckets : {};
}

function percentileSeries(bins, percent) {
  return bins.latency.map((buckets, place) => {
    const value = percentile(buckets, percent, bins.never[place]);
    return value === "never" ? null : value;
  });
}

// Fault spans from the result of a finished run, or from events: [{from, to, what, phases}].
// `windows` are those of a group in the result, which say when messages felt a fault.
function faultSpans(resultFaults, events, end, windows) {
  if (resultFaults && resultFaults.length) {
    const found = new Map((windows || []).map((window) => [window.fault, window]));
    return resultFaults.map((fault) => ({ from: fault.began_us / 1e6, to: (fault.ended_us || end * 1e6) / 1e6, what: [fault.name, fault.target].filter(Boolean).join(" "), phases: phasesOf(fault, found.get(fault.fault)) }));
  }
  const found = new Map();
  for (const event of events) {
    if (event.phase === "begin") found.set(event.id, { from: event.t / 1e6, to: null, what: event.what, phases: [] });
    const span = found.get(event.id);
    if (!span) continue;
    if (event.phase === "end") span.to = event.t / 1e6;
    else if (event.phase !== "begin") span.phases.push([event.phase, event.t / 1e6]);
  }
  return [...found.values()].map((span) => ({ ...span, to: span.to ?? end }));
}

// A row for each fault; if there are many, one for each kind, without when they were detected.
function faultRows(faults) {
  const kindOf = (fault) => fault.what.split(" ")[0];
  const drawn = (fault) => ({ ...fault, color: "--span-strong", text: fault.what });
  if (faults.length <= MOST_FAULT_ROWS) return faults.map((fault) => ({ label: kindOf(fault), spans: [drawn(fault)], phases: fault.phases }));
  const kinds = [...new Set(faults.map(kindOf))].slice(0, MOST_FAULT_ROWS);
  return kinds.map((kind) => ({ label: kind, spans: faults.filter((fault) => kindOf(fault) === kind).map(drawn) }));
}

// Of usage the processes that took the most CPU and memory at any time, in their old order.
function busiest(usage, most) {
  const peak = (values) => values.reduce((high, value) => Math.max(high, value ?? 0), 0);
  const ranks = usage.names.map((_, row) => ({ row, cpu: peak(usage.cpu[row]), memory: peak(usage.memory[row]) }));
  ranks.sort((a, b) => b.cpu - a.cpu || b.memory - a.memory);
  const kept = new Set(ranks.slice(0, most).map((each) => each.row));
  const keep = (rows) => rows.filter((_, row) => kept.has(row));
  return { ...usage, names: keep(usage.names), cpu: keep(usage.cpu), memory: keep(usage.memory) };
}

// When a fault was detected and the system recovered, from its begin, and had drained, from its end.
function phasesOf(fault, window) {
  const { time_to_detect_us: detect, time_to_recover_us: recover, time_to_drain_us: drain } = window || {};
  const found = [["detected", detect, fault.began_us], ["recovered", recover, fault.began_us], ["drained", drain, fault.ended_us]];
  return found.filter(([, after, from]) => typeof after === "number" && typeof from === "number").map(([phase, after, from]) => [phase, (from + after) / 1e6]);
}

const STATE_COLORS = [
  [/dead|killed|failed|lost|parked|offline|fenced/, "--state-bad"],
  [/paus|wait|behind|start|stopp|unreach|slow/, "--state-warn"],
  [/lead/, "--state-lead"],
];

function stateColor(state) {
  const found = STATE_COLORS.find(([pattern]) => pattern.test(state));
  return found ? found[1] : "--state-good";
}

// Rows of objects by state; an election is a mark where a leader or controller changes.
function stateRows(logs, end) {
  const rows = [];
  for (const [part, log] of Object.entries(logs)) {
    const objects = new Map();
    for (const event of log.states) {
      if (/^partition /.test(event.object) && part !== "mirror") continue;
      if (!objects.has(event.object)) objects.set(event.object, []);
      objects.get(event.object).push(event);
    }
    for (const [object, events] of objects) {
      const spans = events.map((event, place) => ({
        from: event.t / 1e6,
        to: place + 1 < events.length ? events[place + 1].t / 1e6 : end,
        color: stateColor(event.state),
        text: event.state,
        reason: event.reason,
      }));
      const label = part === "run" || part === object ? object : `${part} ${object}`;
      rows.push({ label, spans, marks: [] });
    }
  }
  return rows.sort((a, b) => a.label.localeCompare(b.label, "en", { numeric: true })).slice(0, 40);
}

// When partitions got another leader, from the states of the clusters.
function electionTimes(logs) {
  const found = [];
  for (const [part, log] of Object.entries(logs)) {
    const before = new Map();
    for (const event of log.states.filter((each) => /^partition /.test(each.object))) {
      const epoch = event.details ? event.details.epoch : undefined;
      // A change of the in-sync replicas alone is no election, nor is the first leader of a topic.
      const isElection = /^led by|lead|elect/.test(event.state) && (epoch === undefined || (before.has(event.object) && before.get(event.object) !== epoch));
      before.set(event.object, epoch);
      if (isElection) found.push({ t: event.t / 1e6, what: `${part === "run" ? "" : `${part} `}${event.object}: ${event.state}${event.reason ? `, ${event.reason}` : ""}` });
    }
  }
  return found;
}

// CPU (cores) and memory (bytes) by process, from the ticks of all parts, on one list of times.
function usageSeries(logs) {
  const byName = new Map();
  for (const [part, log] of Object.entries(logs)) {
    for (const tick of log.ticks) {
      for (const usage of tick.processes) {
        const name = part === "run" || usage.name.startsWith(part) ? usage.name : `${part} ${usage.name}`;
        if (!byName.has(name)) byName.set(name, []);
        byName.get(name).push({ t: Math.round(tick.t / 1e6), exact: tick.t / 1e6, pid: usage.pid, cpu: usage.cpu_s, bytes: usage.resident_bytes });
      }
    }
  }
  const names = [...byName.keys()].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const times = [...new Set([...byName.values()].flatMap((samples) => samples.map((sample) => sample.t)))].sort((a, b) => a - b);
  const place = new Map(times.map((t, at) => [t, at]));
  const cpu = names.map(() => times.map(() => null));
  const memory = names.map(() => times.map(() => null));
  names.forEach((name, row) => {
    let before = null;
    for (const sample of byName.get(name)) {
      // A process that is ending has no memory any more.
      memory[row][place.get(sample.t)] = sample.bytes || null;
      const isSame = before && before.pid === sample.pid && sample.exact > before.exact && sample.cpu >= before.cpu;
      if (isSame) cpu[row][place.get(sample.t)] = (sample.cpu - before.cpu) / (sample.exact - before.exact);
      before = sample;
    }
  });
  fillGaps(times, cpu);
  fillGaps(times, memory);
  return { names, times, cpu, memory };
}

// Processes are sampled at times of their own: a value holds until the next one, if that is near.
function fillGaps(times, rows) {
  for (const row of rows) {
    let last = -1;
    for (let place = 0; place < row.length; place += 1) {
      if (row[place] === null) continue;
      if (last >= 0 && times[place] - times[last] <= LONGEST_GAP_S) row.fill(row[last], last + 1, place);
      last = place;
    }
  }
}

// The lanes of which the largest share is affected, over intended send time. The height of a span is
// the share of its messages with a finding.
function laneRows(lanes, start) {
  const share = (lane) => shareOf(lane.affected, lane.due);
  return [...lanes].sort((a, b) => share(b) - share(a)).slice(0, MOST_LANES).map((lane) => ({
    label: `${lane.topic} ${lane.lane}`,
    lane,
    spans: lane.stretches.map(([from, to, due, affected], place) => ({ from: start + from / 1e6, to: start + endOf(lane.stretches, place, to) / 1e6, color: "--lane", share: shareOf(affected, due), affected, due })),
  }));
}

// A stretch ends at its last message. It is drawn up to the next one if that is as near as messages
// are to each other, so that only time without messages is a gap.
function endOf(stretches, place, to) {
  const [from, , due] = stretches[place];
  const next = place + 1 < stretches.length ? stretches[place + 1][0] : to;
  const step = due > 1 ? (to - from) / (due - 1) : 0;
  return next > to && next - to <= 2 * step ? next : to;
}

function shareOf(affected, due) {
  return due ? Math.min(1, affected / due) : Number(affected > 0);
}

// How far messages moved from their place, for each lane in which any did: the largest mean first.
function listMovedLanes(lanes) {
  return (lanes || []).filter((lane) => lane.F > 0).map((lane) => ({
    name: `${lane.topic} ${lane.lane}`, sum: lane.F, pairs: lane.K || 0, delivered: lane.delivered || 0, reordered: lane.reordered || 0,
    mean: lane.delivered ? lane.F / lane.delivered : null, order: lane.F_limit ? lane.F / lane.F_limit : null,
  })).sort((a, b) => (b.mean ?? 0) - (a.mean ?? 0));
}

// The curve of one histogram over the whole run, while no stored curve exists.
function curveOfBins(bins, phase) {
  const buckets = addBuckets(bins.latency);
  const percents = [1, 5, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.99, 100];
  const points = percents.map((percent) => [percent, percentile(buckets, percent)]).filter(([, value]) => typeof value === "number");
  const count = Object.values(buckets).reduce((sum, each) => sum + each, 0);
  return count ? [{ phase, count, never: 0, points }] : [];
}

// The range of latencies on a log scale, with a top row for what never arrives.
function latencyRange(bins) {
  const used = Object.keys(addBuckets(bins.latency)).map(Number);
  const low = used.length ? bucketEnd(Math.min(...used) - 1) : 100;
  const high = used.length ? bucketEnd(Math.max(...used)) : 1e6;
  const top = Math.max(high, low * 8);
  const hasNever = bins.never.some((count) => count > 0);
  return { low: Math.max(1, low), high: top, limit: hasNever ? top * (top / low) ** 0.18 : top * 1.05, hasNever };
}

// api.js
// Requests to the server, and its stream.

async function getJson(path) {
  const answer = await fetch(`/api/v1/${path}`, { cache: "no-store" });
  return readAnswer(answer);
}

async function postJson(path, body) {
  const headers = { "Content-Type": "application/json", "X-Shoal": "1" };
  return readAnswer(await fetch(`/api/v1/${path}`, { method: "POST", headers, body: JSON.stringify(body) }));
}

async function readAnswer(answer) {
  const content = await answer.json();
  if (!answer.ok) throw new Error([content.error, content.remedy].filter(Boolean).join("; "));
  return content;
}

// Follows things. A hidden page closes its stream: browsers allow six connections to a server.
// `onMessage` gets ("things" | "events", content), `onState` whether the server answers.
function openStream({ isNow = false, positions = {}, onMessage, onState }) {
  const known = { ...positions };
  let source = null;
  let timer = null;

  function connect() {
    const query = new URLSearchParams();
    if (isNow) query.append("now", "1");
    for (const [id, position] of Object.entries(known)) {
      query.append("follow", id);
      query.append("position", position);
    }
    source = new EventSource(`/api/v1/stream?${query}`);
    source.onopen = () => onState(true);
    // Reconnect here rather than in EventSource, which would ask for the old positions.
    source.onerror = () => { disconnect(); onState(false); timer = setTimeout(connect, 2000); };
    source.addEventListener("things", (event) => onMessage("things", JSON.parse(event.data)));
    source.addEventListener("events", (event) => {
      const content = JSON.parse(event.data);
      known[content.thing] = content.position;
      onMessage("events", content);
    });
  }

  function disconnect() {
    clearTimeout(timer);
    if (source) source.close();
    source = null;
  }

  function onVisibility() {
    if (document.hidden) disconnect();
    else if (!source) connect();
  }

  document.addEventListener("visibilitychange", onVisibility);
  if (!document.hidden) connect();
  return () => {
    document.removeEventListener("visibilitychange", onVisibility);
    disconnect();
  };
}

// router.js
// The address of the page: "#/run/NAME?from=1&to=2". Everything that a user can choose is in it.

function parseAddress(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const [place, ...rest] = path.split("/");
  return {
    place: place || "home",
    name: decodeName(rest.join("/")),
    query: Object.fromEntries(new URLSearchParams(query || "")),
  };
}

// A name that is not validly encoded is taken as it stands: no run has it, and the page says so.
function decodeName(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function buildAddress(place, name = "", query = {}) {
  const chosen = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const search = new URLSearchParams(chosen).toString();
  return `#/${place === "home" ? "" : place}${name ? `/${encodeURIComponent(name)}` : ""}${search ? `?${search}` : ""}`;
}

// Changes of a filter or a zoom replace the entry in the history; a new place adds one.
function replaceQuery(address, changes) {
  const next = buildAddress(address.place, address.name, { ...address.query, ...changes });
  history.replaceState(null, "", next);
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}

const PARTS_OF_RUN = ["source", "target", "mirror"];

// "source" of `run:NAME/source`, "run" of a whole run, which may be one of a sweep: `run:SWEEP/NAME`.
function partOf(id) {
  const last = id.slice(id.lastIndexOf("/") + 1);
  return id.includes("/") && PARTS_OF_RUN.includes(last) ? last : "run";
}

// parts.js
// Small parts that several places use.


function Verdict({ word }) {
  return html`<span class=${`verdict ${word || "none"}`}>${word || "not judged"}</span>`;
}

function FlowBar({ flow }) {
  const most = Math.max(1, ...flow.map((stage) => stage.count));
  const text = flow.map((stage) => `${stage.stage} ${formatCount(stage.count)}${stage.lost ? `, ${formatCount(stage.lost)} lost` : ""}`).join("; ");
  return html`<div class="flowbar" role="img" aria-label=${text}>
    ${flow.map((stage) => html`<div class="segment" title=${text}>
      <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
        <rect class="passed" width=${(100 * stage.count) / most} height="10" />
        ${stage.lost ? html`<rect class="lost" x=${Math.min(96, (100 * stage.count) / most)} width=${Math.max(4, (100 * stage.lost) / most)} height="10" />` : null}
        ${stage.copies ? html`<rect class="copied" y="7" width=${Math.max(4, (100 * stage.copies) / most)} height="3" />` : null}
      </svg>
      <span>${stage.stage}</span>
    </div>`)}
  </div>`;
}

// The table behind a chart. `rows` may be a function: a closed table costs nothing.
function DataTable({ caption, columns, rows, most = 300 }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details class="data" onToggle=${(event) => setOpen(event.currentTarget.open)}><summary>Table: ${caption}</summary>
    ${isOpen ? html`<${TableRows} caption=${caption} columns=${columns} rows=${typeof rows === "function" ? rows() : rows} most=${most} />` : null}
  </details>`;
}

function TableRows({ caption, columns, rows, most }) {
  const shown = rows.slice(0, most);
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${`table: ${caption}`}><table>
      <thead><tr>${columns.map((column) => html`<th scope="col">${column}</th>`)}</tr></thead>
      <tbody>${shown.map((row) => html`<tr>${row.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody>
    </table></div>
    ${rows.length > most ? html`<p class="quiet">The first ${formatCount(most)} of ${formatCount(rows.length)} rows; choose a shorter time for others.</p>` : null}`;
}

// A table that is always shown; the first column names its row.
function FactTable({ id, title, columns, rows, caption }) {
  return html`<section aria-labelledby=${id}><h2 id=${id}>${title}</h2>${caption ? html`<p class="quiet">${caption}</p>` : null}
    <div class="scroll" tabindex="0" role="region" aria-label=${`table: ${title}`}><table>
      <thead><tr>${columns.map((column) => html`<th scope="col">${column}</th>`)}</tr></thead>
      <tbody>${rows.map(([name, ...cells]) => html`<tr><th scope="row">${name}</th>${cells.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody></table></div></section>`;
}

function Sparkline({ values, label }) {
  const known = values.map((value) => value ?? 0);
  const most = Math.max(1, ...known);
  const step = 120 / Math.max(1, known.length - 1);
  const points = known.map((value, place) => `${(place * step).toFixed(1)},${(30 - (28 * value) / most).toFixed(1)}`).join(" ");
  return html`<svg class="spark" viewBox="0 0 120 31" preserveAspectRatio="none" role="img" aria-label=${label}>
    ${known.length > 1 ? html`<polyline points=${points} />` : null}
  </svg>`;
}

// Where a page belongs: all runs, then the sweep and the run that it is a part of. Names of runs of
// sweeps are SWEEP/RUN, of parts RUN/PART.
function WayBack({ name = "" }) {
  const above = name.split("/").slice(0, -1);
  const isPart = partOf(name) !== "run";
  const links = above.map((word, place) => {
    const isRun = isPart && place === above.length - 1;
    return html` › <a href=${isRun ? buildAddress("run", above.join("/")) : buildAddress("sweep", word)}>${word}</a>`;
  });
  return html`<p><a href="#/">All runs</a>${links}</p>`;
}

// What an address chose and this page could not follow.
function Notes({ notes }) {
  return notes.map((text) => html`<p class="note" role="status">${text}</p>`);
}

// What cannot be drawn (data of another shape, a defect here) is said, instead of an empty page.
function Guarded({ name, children }) {
  const [error] = useErrorBoundary((found) => console.error(found));
  if (!error) return children;
  return html`<main><p><a href="#/">All runs</a></p><h1>${name || "Shoal"}</h1>
    <${Problem} text=${`This cannot be shown: ${error.message}. Its files may be damaged or of another version; if shoal audit does not help, it is a defect of this page.`} /></main>`;
}

function Problem({ text }) {
  return html`<p class="problem" role="alert">${text}</p>`;
}

// now.js
// Now: a card for each run, cluster and mirror that runs.


const KEPT_TICKS = 61;
const STALE_S = 5;

// Everything that runs, and whether the server answers.
function useNow() {
  const [state, setState] = useState({ things: [], logs: {}, nowUs: 0, receivedMs: 0, isConnected: null });
  useEffect(() => openStream({
    isNow: true,
    onState: (isConnected) => setState((old) => ({ ...old, isConnected })),
    onMessage: (kind, content) => setState((old) => onMessage(old, kind, content)),
  }), []);
  return state;
}

function onMessage(old, kind, content) {
  if (kind === "things") return { ...old, things: content.things, nowUs: content.now_us, receivedMs: Date.now(), isConnected: true };
  const log = addEvents(old.logs[content.thing] || emptyLog(), content.events, content.is_start);
  log.ticks = log.ticks.slice(-KEPT_TICKS);
  return { ...old, logs: { ...old.logs, [content.thing]: log } };
}

function NowCards({ state }) {
  const whole = state.things.filter((thing) => partOf(thing.id) === "run");
  if (state.isConnected === false) {
    return html`<${Disconnected} /><${Cards} things=${whole} state=${state} />`;
  }
  if (!whole.length) return html`<p class="quiet">Nothing runs now.</p>`;
  return html`<${Cards} things=${whole} state=${state} />`;
}

function Disconnected() {
  return html`<p class="problem" role="alert">Disconnected: shoal serve does not answer. What you see is old; this page tries again.</p>`;
}

function Cards({ things, state }) {
  return html`<ul class="cards">${things.map((thing) => html`<${Card} key=${thing.id} thing=${thing} log=${state.logs[thing.id] || emptyLog()} state=${state} />`)}</ul>`;
}

function Card({ thing, log, state }) {
  const ageS = Math.max(0, (state.nowUs - thing.written_us) / 1e6);
  const counter = kindOf(thing) === "controller" ? null : findCounter(log.ticks, MAIN_COUNTERS[thing.subject] || []);
  const values = counter ? rates(log.ticks, counter).slice(1) : [];
  const title = html`<span class="kind">${kindOf(thing)}</span> ${thing.name}`;
  return html`<li class="card">
    <h3><a href=${buildAddress(thing.subject, thing.id.slice(thing.id.indexOf(":") + 1))}>${title}</a></h3>
    <p class="sentence">${describeThing(thing, log)}</p>
    <${Sparkline} values=${values} label=${counter ? `${counter} per second in the last minute, now ${formatRate(values[values.length - 1])}` : "no counts yet"} />
    <p class=${ageS > STALE_S ? "age stale" : "age"}>${ageS > STALE_S ? `no data for ${formatAge(ageS)}` : `data ${formatAge(ageS)} old`} · running for ${formatAge((state.nowUs - thing.started_us) / 1e6)}</p>
  </li>`;
}

// A single node is a cluster as that node sees it.
function kindOf(thing) {
  return (thing.details?.node || thing.subject).split(" ")[0];
}

const MAIN_COUNTERS = {
  run: ["received", "acknowledged", "sent"],
  mirror: ["records", "copied_records", "batches"],
  cluster: ["records_in"],
};

// One sentence on what a thing does now.
function describeThing(thing, log) {
  const tick = log.ticks[log.ticks.length - 1];
  if (!tick) return "No counts yet.";
  if (thing.subject === "run") return describeRun(log, tick);
  return thing.subject === "mirror" ? describeMirror(log, tick) : describeCluster(thing, log, tick);
}

function describeMirror(log, tick) {
  const { lag, lag_s: lagS, partitions, parked, waiting, paused } = tick.gauges;
  const rate = lastRate(log.ticks, "records");
  const bytes = lastRate(log.ticks, "bytes");
  const held = [["parked", parked], ["waiting", waiting]].filter(([, count]) => count).map(([state, count]) => `${formatCount(count)} ${state}`);
  const reasons = lastStates(log).filter((event) => event.reason && /parked|waiting/.test(event.state)).slice(0, 2);
  return [
    paused ? "Paused." : `Records copied: ${formatRate(rate)}${bytes === null ? "" : ` (${formatBytes(bytes)}/s)`}.`,
    lag === undefined ? "" : lag ? `${plural(lag, "record")} behind${lagS === undefined ? "" : `, ${formatUs(lagS * 1e6)}`}.` : "Nothing behind.",
    held.length ? `Of ${plural(partitions || 0, "partition")}: ${held.join(", ")}.` : "",
    ...reasons.map((event) => `${event.object}: ${event.reason}.`),
  ].filter(Boolean).join(" ");
}

function describeCluster(thing, log, tick) {
  const nodes = lastStates(log).filter((event) => /^(broker|controller) /.test(event.object) && event.state !== "removed");
  const brokers = nodes.filter((event) => event.object.startsWith("broker "));
  const held = nodes.filter((event) => /dead|paused|starting|fenced|behind/.test(event.state)).map((event) => `${event.object} is ${event.state}`);
  const { partitions = 0, offline = 0, under_replicated: lacking = 0 } = tick.gauges;
  const lacks = [offline ? `${formatCount(offline)} without a leader` : "", lacking ? `${formatCount(lacking)} under-replicated` : ""].filter(Boolean).join(", ");
  return [
    `${plural(brokers.length, "broker")}${held.length ? `: ${held.join(", ")}` : ", all running"}.`,
    partitions ? `${plural(partitions, "partition")}, ${lacks || "all in sync"}.` : "",
    kindOf(thing) === "controller" ? "" : `Records appended${thing.details?.node ? " here" : ""}: ${formatRate(lastRate(log.ticks, "records_in"))}.`,
  ].filter(Boolean).join(" ");
}

// The last state of each object.
function lastStates(log) {
  return [...new Map(log.states.map((event) => [event.object, event])).values()];
}

function describeRun(log, tick) {
  const counted = ["sent", "acknowledged", "received"].filter((name) => tick.counters[name] !== undefined);
  const parts = counted.map((name) => `${formatCount(tick.counters[name])} ${name} (${formatRate(lastRate(log.ticks, name))})`);
  const found = Object.values(log.findings).filter((finding) => finding.count);
  const findings = found.map((finding) => `${formatCount(finding.count)} ${finding.finding}`);
  const faults = activeFaults(log.faults);
  return [
    parts.length ? `So far ${parts.join(", ")}.` : "Starting.",
    faults.length ? `${plural(faults.length, "fault")} active: ${faults.join(", ")}.` : "",
    findings.length ? `Findings so far: ${findings.join(", ")}.` : "",
  ].filter(Boolean).join(" ");
}

function activeFaults(events) {
  const open = new Map();
  for (const event of events) {
    if (event.phase === "begin") open.set(event.id, event.what);
    if (event.phase === "end") open.delete(event.id);
  }
  return [...open.values()];
}

// spacetime.js
// A space-time diagram in the manner of ShiViz: a line for each node, a row for each event, and an
// edge wherever a message made one event depend on one of another node.


const ROW = 24;
const NARROW = innerWidth < 500;
const COLUMN = NARROW ? 30 : 64;
const MOST_COLUMNS = 12;

// `events` are [host, clock, text, t in µs or null]. Pure: rows in an order that respects causes,
// and the edges between them, without those that follow from others.
function layOut(hosts, events, most = 150, range = null) {
  const total = (clock) => Object.values(clock).reduce((sum, count) => sum + count, 0);
  const isDated = events.every((event) => event[3] !== null);
  const ordered = [...events].sort((a, b) => (isDated && a[3] - b[3]) || total(a[1]) - total(b[1]));
  const inRange = ordered.filter((event) => !range || (event[3] !== null && event[3] / 1e6 >= range[0] && event[3] / 1e6 <= range[1]));
  const shown = inRange.slice(-most);
  const rowOf = new Map(shown.map(([host, clock], row) => [`${host} ${clock[host]}`, row]));
  const clockOf = new Map(events.map(([host, clock]) => [`${host} ${clock[host]}`, clock]));
  const edges = [];
  shown.forEach(([host, clock], row) => {
    const before = clockOf.get(`${host} ${clock[host] - 1}`) || {};
    const causes = Object.keys(clock).filter((other) => other !== host && clock[other] > (before[other] || 0));
    for (const cause of causes) {
      const isImplied = causes.some((other) => other !== cause && ((clockOf.get(`${other} ${clock[other]}`) || {})[cause] || 0) >= clock[cause]);
      const from = rowOf.get(`${cause} ${clock[cause]}`);
      if (!isImplied && from !== undefined) edges.push([from, row]);
    }
  });
  const used = hosts.filter((host) => shown.some((event) => event[0] === host));
  return { hosts: used.slice(0, MOST_COLUMNS), rows: shown.map(([host, clock, text, t]) => ({ host, clock, text, t })), edges, leftOut: inRange.length - shown.length };
}

function SpaceTime({ hosts, events, range = null, most = 150, label }) {
  const [chosen, setChosen] = useState(null);
  const { hosts: columns, rows, edges, leftOut } = layOut(hosts, events, most, range);
  if (!rows.length) return html`<p class="quiet">No event in this time.</p>`;
  const x = (host) => 14 + COLUMN * Math.max(0, columns.indexOf(host));
  const y = (row) => ROW * row + ROW / 2;
  const [width, height] = [28 + COLUMN * (columns.length - 1), ROW * rows.length];
  const of = rows[chosen];
  const isRelated = (row) => !of || causes(row, of) || causes(of, row);
  return html`<div class="spacetime" role="group" aria-label=${label}>
    ${leftOut ? html`<p class="quiet">The last ${most} events${range ? " of that time" : ""}; ${leftOut} before them are left out. Drag over a chart to choose a time.</p>` : null}
    <div class="columns" aria-hidden="true" style=${{ marginLeft: `${14 - COLUMN / 2}px` }}>${columns.map((host) => html`<span style=${{ width: `${COLUMN}px` }}>${host}</span>`)}</div>
    <div class="diagram">
      <svg width=${width} height=${height} viewBox="0 0 ${width} ${height}" aria-hidden="true">
        ${columns.map((host) => html`<line class="host" x1=${x(host)} x2=${x(host)} y1="0" y2=${height} />`)}
        ${edges.map(([from, to]) => html`<line class=${isRelated(rows[from]) && isRelated(rows[to]) ? "edge" : "edge faint"} x1=${x(rows[from].host)} y1=${y(from)} x2=${x(rows[to].host)} y2=${y(to)} />`)}
        ${rows.map((row, place) => html`<circle class=${place === chosen ? "dot chosen" : isRelated(row) ? "dot" : "dot faint"} cx=${x(row.host)} cy=${y(place)} r="5" />`)}
      </svg>
      <ol>${rows.map((row, place) => html`<li><button type="button" class=${isRelated(row) ? "" : "faint"} aria-pressed=${place === chosen} title=${row.text} onClick=${() => setChosen(place === chosen ? null : place)}>
        ${row.t === null || NARROW ? null : html`<span class="quiet">${new Date(row.t / 1000).toISOString().slice(14, 23)}</span> `}<b>${row.host}</b> ${row.text}</button></li>`)}</ol>
    </div></div>`;
}

// Whether one event may have caused another.
function causes(cause, effect) {
  return (effect.clock[cause.host] || 0) >= cause.clock[cause.host];
}

// stories.js
// The order of events: of a traced cluster, and three saved stories that come with the page.


const TRACE_EVERY_MS = 3000;

function Stories({ address }) {
  const { story } = address.query;
  return html`<main><p><a href="#/">All runs</a></p><h1>What happens before what</h1>
    <p>Three stories of a Kafka Lite with three brokers, as its nodes recorded them: a line for each node, a dot for each event, an edge for each message that made one event depend on another. Choose an event to see what may have caused it, and what it may have caused.</p>
    <${SavedStories} chosen=${story} onChoose=${(name) => replaceQuery(address, { story: name })} /></main>`;
}

function SavedStories({ chosen, onChoose }) {
  const [stories, setStories] = useState(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    fetch("/stories.json").then((answer) => answer.json()).then((found) => setStories(found.stories), (error) => setProblem(error.message));
  }, []);
  if (problem) return html`<${Problem} text=${problem} />`;
  if (!stories) return html`<p class="quiet">Loading…</p>`;
  const { value, notes } = chooseOne(chosen, stories.map((each) => each.name), { what: "story", fallback: "choose one" });
  const shown = stories.find((each) => each.name === value);
  return html`<${Notes} notes=${notes} /><p class="filter">${stories.map((each) => html`<button type="button" aria-pressed=${each.name === chosen} onClick=${() => onChoose(each.name === chosen ? "" : each.name)}>${each.title}</button>`)}</p>
    ${shown ? html`<p>${shown.text}</p><${SpaceTime} key=${shown.name} hosts=${shown.hosts} events=${shown.events} label=${shown.title} />` : null}`;
}

// The trace of a cluster, of the brushed time or of the last events.
function ClusterTrace({ id, isAlive, window }) {
  const [trace, setTrace] = useState(null);
  useEffect(() => {
    let timer = null;
    const ask = async () => {
      const found = document.hidden ? null : await getJson(`trace?thing=${encodeURIComponent(id)}`).catch(() => null);
      if (found) setTrace(found);
      if (isAlive && (!found || found.hosts.length)) timer = setTimeout(ask, TRACE_EVERY_MS);
    };
    ask();
    return () => clearTimeout(timer);
  }, [id, isAlive]);
  return html`<section aria-labelledby="order"><h2 id="order">Order of events</h2>
    ${trace && trace.hosts.length
      ? html`<p class="quiet">${window ? "In the chosen time." : "The last events."} Choose one to see what may have caused it.</p><${SpaceTime} hosts=${trace.hosts} events=${trace.events} range=${window} most=${window ? 150 : 40} label="Order of events" />`
      : html`<p class="quiet">This cluster is not traced: start it with <code>--trace</code> to see what happened before what.</p>`}
    <p><a href=${buildAddress("stories", "", { story: "election" })}>Three saved stories</a>: the first leaders, an election, a write.</p></section>`;
}

// tail.js
// The live tail of a topic, which says how many records it skipped.


const MOST_ROWS = 100;
const EMPTY = { rows: [], skipped: 0, problem: "", isOver: false };

function LiveTail({ id, topics, chosen, onChoose, isAlive }) {
  const [topic, setTopic] = useState("");
  const [tail, setTail] = useState(EMPTY);
  useEffect(() => {
    setTail(EMPTY);
    if (!topic) return undefined;
    const source = new EventSource(`/api/v1/tail?${new URLSearchParams({ thing: id, topic })}`);
    const stop = (problem) => { source.close(); setTail((old) => ({ ...old, problem, isOver: true })); };
    source.addEventListener("records", (event) => setTail((old) => addRecords(old, JSON.parse(event.data))));
    source.addEventListener("problem", (event) => stop(JSON.parse(event.data).error));
    source.addEventListener("over", () => stop(""));
    source.onerror = () => stop("The tail ended: shoal serve does not answer, or has too many tails open.");
    // A hidden page gives its connection back.
    const onHidden = () => { if (document.hidden) { stop(""); setTopic(""); } };
    document.addEventListener("visibilitychange", onHidden);
    return () => { document.removeEventListener("visibilitychange", onHidden); source.close(); };
  }, [topic]);
  if (!isAlive) return null;
  const wanted = topics.includes(chosen) ? chosen : topics.find((name) => !name.startsWith("__")) || topics[0] || "";
  return html`<section aria-labelledby="tail"><h2 id="tail">Live tail of a topic</h2>
    ${topics.length ? html`<p class="filter"><label>Topic <select value=${wanted} onChange=${(event) => { setTopic(""); onChoose(event.target.value); }}>${topics.map((name) => html`<option value=${name} selected=${name === wanted}>${name}</option>`)}</select></label>
      <button type="button" onClick=${() => setTopic(topic ? "" : wanted)}>${topic ? "Stop" : "Follow"}</button></p>` : html`<p class="quiet">There is no topic yet.</p>`}
    ${tail.problem ? html`<${Problem} text=${tail.problem} />` : null}
    ${topic ? html`<p role="status">${tail.isOver ? "The tail has ended; follow it again." : tail.rows.length ? "Newest first." : "Waiting for records…"} ${tail.skipped ? html`<b>${plural(tail.skipped, "record")} skipped</b>, because more arrive than are shown.` : "Nothing skipped."}</p>` : null}
    ${topic && tail.rows.length ? html`<${TailTable} rows=${tail.rows} />` : null}</section>`;
}

function addRecords(old, found) {
  return { ...old, skipped: found.skipped, rows: [...found.records.reverse(), ...old.rows].slice(0, MOST_ROWS) };
}

function TailTable({ rows }) {
  const text = (value) => (value === null ? html`<span class="quiet">none</span>` : html`<code class="value">${value.text.slice(0, 200)}${value.cut || value.text.length > 200 ? "…" : ""}</code>`);
  return html`<div class="scroll tail" tabindex="0" role="region" aria-label="table: records"><table>
    <thead><tr>${["partition", "offset", "time (UTC)", "key", "value"].map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${`${row.partition} ${row.offset}`}><td>${row.partition}</td><td>${formatCount(row.offset)}</td><td>${row.timestamp < 0 ? "–" : new Date(row.timestamp).toISOString().slice(11, 23)}</td><td>${text(row.key)}</td><td>${text(row.value)}</td></tr>`)}</tbody></table></div>`;
}

// things.js
// What a page follows of one cluster or mirror, and the buttons that act on it.


const PAGE_ROWS = 100;
const MOST_TICKS = 900;
const SILENT_S = 5;

const UNKNOWN_THING = { thing: null, log: emptyLog(), partitions: {}, problem: "", isConnected: null, isAlive: false, ageS: 0 };

// Loads a thing and follows it; a file that was thinned meanwhile is loaded again.
function useThing(id) {
  const [state, setState] = useState(UNKNOWN_THING);
  const [round, setRound] = useState(0);
  useEffect(() => {
    let isGone = false;
    let close = () => null;
    getJson(`overview?thing=${encodeURIComponent(id)}`).then((found) => {
      if (isGone) return;
      setState((old) => ({ ...old, thing: found.thing, log: addEvents(emptyLog(), found.events, true), partitions: byName(found.partitions), isAlive: found.thing.is_alive, problem: "" }));
      close = openStream({
        positions: { [id]: found.position },
        onState: (isConnected) => setState((old) => ({ ...old, isConnected })),
        onMessage: (kind, content) => {
          if (kind === "events" && content.is_start) setRound((old) => old + 1);
          else setState((old) => (kind === "events" ? withEvents(old, content.events) : withThings(old, id, content)));
        },
      });
      if (isGone) close();
    }, (error) => setState((old) => ({ ...old, problem: error.message })));
    return () => { isGone = true; close(); };
  }, [id, round]);
  return state;
}

function byName(entries) {
  return Object.fromEntries(entries.map((entry) => [entry.partition, entry]));
}

function withEvents(old, events) {
  const log = addEvents(old.log, events, false);
  log.ticks = log.ticks.slice(-MOST_TICKS);
  const changed = events.filter((event) => event.kind === "tick").flatMap((event) => event.partitions || []);
  return { ...old, log, partitions: changed.length ? { ...old.partitions, ...byName(changed) } : old.partitions };
}

function withThings(old, id, content) {
  const found = content.things.find((thing) => thing.id === id);
  return { ...old, isConnected: true, isAlive: Boolean(found), ageS: found ? Math.max(0, (content.now_us - found.written_us) / 1e6) : old.ageS };
}

// Whether the server lets this page act.
function useActions() {
  const [isAllowed, setAllowed] = useState(false);
  useEffect(() => { getJson("starts").then((starts) => setAllowed(starts.allow_actions), () => null); }, []);
  return isAllowed;
}

// "Disconnected", "has ended" or how old the data is.
function DataAge({ state }) {
  if (state.isConnected === false) return html`<${Problem} text="Disconnected: shoal serve does not answer. What you see is old; this page tries again." />`;
  if (!state.isAlive) return html`<p class="age stale">It does not run any more. This is what it wrote last.</p>`;
  const isSilent = state.ageS > SILENT_S;
  return html`<p class=${isSilent ? "age stale" : "age"}>${isSilent ? `no data for ${formatAge(state.ageS)}` : `data ${formatAge(state.ageS)} old`}</p>`;
}

// A button for one action, and what became of it.
function ActionButton({ body, label, title, isDangerous, done = "" }) {
  const [state, setState] = useState({ isBusy: false, problem: "", text: "" });
  const act = () => {
    setState({ isBusy: true, problem: "", text: "" });
    postJson("actions", body).then(() => setState({ isBusy: false, problem: "", text: done }), (error) => setState({ isBusy: false, problem: error.message, text: "" }));
  };
  return html`<span class="action"><button type="button" class=${isDangerous ? "danger" : ""} disabled=${state.isBusy} title=${title} aria-label=${title} onClick=${act}>${state.isBusy ? `${label}…` : label}</button>
    ${state.text ? html` <span role="status">${state.text}</span>` : null}
    ${state.problem ? html`<span class="problem" role="alert">${state.problem}</span>` : null}</span>`;
}

// The last state of each object whose name begins with one of these words.
function currentStates(log, words) {
  const last = new Map();
  // States from before its last start may be of objects that no longer exist.
  const start = log.meta ? log.meta.t : 0;
  for (const event of log.states) {
    if (event.t >= start && words.some((word) => event.object.startsWith(`${word} `))) last.set(event.object, event);
  }
  return [...last.values()].filter((event) => event.state !== "removed");
}

function compareNames(a, b) {
  return a.localeCompare(b, "en", { numeric: true });
}

// colors.js
// Colours of the style sheet for canvases, which cannot use CSS variables.

const kept = new Map();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => kept.clear());

// Paper is light and narrow: charts are drawn again for it. This runs before the charts hear of it.
function setPrinting(isPrinting) {
  document.documentElement.classList.toggle("printing", isPrinting);
  kept.clear();
}
window.addEventListener("beforeprint", () => setPrinting(true));
window.addEventListener("afterprint", () => setPrinting(false));

function readColor(name) {
  if (!name.startsWith("--")) return name;
  if (!kept.has(name)) kept.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return kept.get(name);
}

// The heat of a cell: the more samples, the stronger.
function heatColor(share) {
  return `color-mix(in srgb, ${readColor("--heat")} ${Math.round(12 + 88 * share)}%, ${readColor("--surface")})`;
}

// decimate.js
// Fewer points for a chart than it has data: at most two rows for each column of pixels. Pure.

// `columns` are [times, values…], times ascending. Only what is drawn between `from` and `to` is
// kept, with one row on each side. In each column of pixels every series keeps its least and its
// greatest value, in their order, so the drawn lines cover the same pixels; a gap stays a gap if it
// fills a column.
function decimate(columns, from, to, width) {
  const times = columns[0];
  const first = Math.max(0, findPlace(times, from) - 1);
  const last = Math.min(times.length, findPlace(times, to) + 2);
  const count = last - first;
  const buckets = Math.max(1, Math.floor(width));
  if (count <= 2 * buckets) return first === 0 && last === times.length ? columns : columns.map((column) => column.slice(first, last));
  const edges = edgesOf(times, first, last, buckets);
  const kept = [];
  for (let edge = 0; edge + 1 < edges.length; edge += 1) {
    kept.push(times[edges[edge]]);
    if (edges[edge + 1] - edges[edge] > 1) kept.push(times[edges[edge + 1] - 1]);
  }
  return [kept, ...columns.slice(1).map((values) => extremes(values, edges))];
}

// Where each column of pixels begins; columns without a point are left out.
function edgesOf(times, first, last, buckets) {
  const [low, high] = [times[first], times[last - 1]];
  const scale = buckets / (high - low || 1);
  const edges = [first];
  let current = 0;
  for (let place = first + 1; place < last; place += 1) {
    const bucket = Math.min(buckets - 1, Math.floor((times[place] - low) * scale));
    if (bucket !== current) { edges.push(place); current = bucket; }
  }
  edges.push(last);
  return edges;
}

function extremes(values, edges) {
  const kept = [];
  for (let edge = 0; edge + 1 < edges.length; edge += 1) {
    let [low, high] = [-1, -1];
    for (let place = edges[edge]; place < edges[edge + 1]; place += 1) {
      const value = values[place];
      if (value === null || value === undefined) continue;
      if (low < 0 || value < values[low]) low = place;
      if (high < 0 || value > values[high]) high = place;
    }
    kept.push(low < 0 ? null : values[Math.min(low, high)]);
    if (edges[edge + 1] - edges[edge] > 1) kept.push(low < 0 ? null : values[Math.max(low, high)]);
  }
  return kept;
}

// The first place whose time is not below this one.
function findPlace(times, time) {
  let [low, high] = [0, times.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

// charts.js
// Charts over time: one uPlot for each track. All tracks share the range and the crosshair.


// Points for each column of pixels, from which on a line is drawn as columns.
const DENSE_POINTS = 1.3;
const SYNC_KEY = "tracks";
const [AXIS_WIDTH, LONGEST_LABEL] = innerWidth < 500 ? [64, 9] : [112, 16];

// `columns` is [times in s, values…]; `series` describes the values: {label, color, fill, width, format}.
// `paint(u, ctx)` draws behind the lines, `cursor` is a moment that is marked in front of them. Dragging calls `onZoom(from, to)`, a double click `onZoom()`.
function Track(props) {
  const host = useRef(null);
  const chart = useRef(null);
  const latest = useRef(props);
  latest.current = props;
  const shape = JSON.stringify([props.series.map((each) => [each.label, each.color]), props.height, props.isLast, props.yKind]);
  useEffect(() => {
    chart.current = new uPlot(buildOptions(latest, host.current.clientWidth), pickColumns(props, host.current.clientWidth), host.current);
    host.current.querySelectorAll("canvas").forEach((canvas) => canvas.setAttribute("aria-hidden", "true"));
    const drawn = chart.current;
    const observer = new ResizeObserver(() => resize(drawn, host.current, latest.current));
    observer.observe(host.current);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const redraw = () => chart.current.redraw(false, true);
    dark.addEventListener("change", redraw);
    const onPrint = () => { chart.current.setSize({ width: host.current.clientWidth, height: latest.current.height }); redraw(); };
    window.addEventListener("beforeprint", onPrint);
    window.addEventListener("afterprint", onPrint);
    return () => {
      observer.disconnect();
      dark.removeEventListener("change", redraw);
      window.removeEventListener("beforeprint", onPrint);
      window.removeEventListener("afterprint", onPrint);
      chart.current.destroy();
    };
  }, [shape]);
  useEffect(() => {
    const u = chart.current;
    // One draw for all three: uPlot draws at the end of a batch.
    u.batch(() => {
      u.setData(pickColumns(props, u.width), false);
      u.setScale("x", { min: props.range[0], max: props.range[1] });
      u.redraw(false, true);
    });
  });
  return html`<figure class="track"><figcaption>${props.title}</figcaption><div ref=${host} role="img" aria-label=${props.title}></div></figure>`;
}

function resize(chart, host, props) {
  if (!host.clientWidth || host.clientWidth === chart.width) return;
  chart.setSize({ width: host.clientWidth, height: props.height });
  chart.setData(pickColumns(props, host.clientWidth), false);
  chart.redraw(true, true);
}

// The table behind a chart has all values; the chart has those that its pixels can show.
function pickColumns({ columns, range }, width) {
  return decimate(columns, range[0], range[1], Math.max(100, width - AXIS_WIDTH) * devicePixelRatio);
}

function buildOptions(latest, width) {
  const { series, height, isLast, yKind, bands } = latest.current;
  const axis = { stroke: () => readColor("--quiet"), grid: { stroke: () => readColor("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  return {
    width, height,
    padding: [6, 28, isLast ? 0 : 4, 0],
    scales: { x: { time: true, range: () => latest.current.range }, y: yScale(latest, yKind) },
    axes: [
      { ...axis, size: isLast ? 32 : 0, space: 110, values: (u, splits, index, space, step) => splits.map((value) => (isLast ? formatTick(value, step) : "")) },
      { ...axis, size: AXIS_WIDTH, filter: (u, splits) => splits, values: (u, splits) => (latest.current.yLabels || formatPlain)(u, splits), splits: latest.current.ySplits ? (u) => latest.current.ySplits(u) : undefined, grid: { ...axis.grid, show: yKind !== "rows" } },
    ],
    series: [{ label: "time (UTC)", value: (u, value) => (value ? new Date(value * 1000).toISOString().slice(11, 23) : "–") }, ...series.map((each) => ({
      label: each.label,
      stroke: () => readColor(each.color),
      fill: each.fill ? () => readColor(each.fill) : undefined,
      width: each.width ?? 1.5,
      spanGaps: false,
      paths: each.fill || bands ? undefined : buildPath,
      points: { show: false },
      value: (u, value) => (value === null || value === undefined ? "–" : (each.format || String)(value)),
    }))],
    bands: (bands || []).map((band) => ({ series: band.series, fill: () => readColor(band.fill) })),
    tzDate: (s) => uPlot.tzDate(new Date(s * 1000), "UTC"),
    legend: { show: series.length > 0, live: true },
    cursor: {
      y: false,
      points: { show: series.length > 0 && yKind !== "rows" },
      drag: { x: true, y: false, setScale: false },
      sync: { key: SYNC_KEY, filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
      bind: { dblclick: () => () => latest.current.onZoom() },
    },
    hooks: {
      drawClear: [(u) => clip(u, () => paintBehind(u, latest.current))],
      drawSeries: [(u, place) => { if (u.series[place].paths === buildPath && isDense(u)) paintColumns(u, place); }],
      draw: [(u) => clip(u, () => paintCursor(u, latest.current.cursor))],
      setSelect: [(u) => {
        const { left, width: chosen } = u.select;
        if (chosen < 4) return;
        latest.current.onZoom(u.posToVal(left, "x"), u.posToVal(left + chosen, "x"));
        u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      }],
    },
  };
}

const linePath = uPlot.paths.linear();

// A line of more points than columns of pixels is drawn as columns: a path of so many corners takes
// a software renderer longer than everything else in the chart.
function buildPath(u, place, first, last) {
  return isDense(u) ? null : linePath(u, place, first, last);
}

function isDense(u) {
  return u.data[0].length > DENSE_POINTS * u.bbox.width;
}

// What a line would cover in each column of pixels, from the column before it on.
function paintColumns(u, place) {
  const { ctx } = u;
  const [times, values] = [u.data[0], u.data[place]];
  const { scale, width } = u.series[place];
  const thick = Math.max(1, width * devicePixelRatio);
  ctx.fillStyle = u.series[place].stroke(u, place);
  const { left, width: across } = u.bbox;
  const { min, max } = u.scales.x;
  const perSecond = across / (max - min || 1);
  const toY = (value) => u.valToPos(value, scale, true);
  clip(u, () => {
    // `least` and `most` of a column, with the last value of the column before.
    let [column, least, most, last] = [-1, 0, 0, null];
    const flush = () => {
      if (column < 0) return;
      const top = toY(most);
      ctx.fillRect(column, top - thick / 2, 1, toY(least) - top + thick);
    };
    for (let row = 0; row < times.length; row += 1) {
      const value = values[row];
      if (value === null || value === undefined) {
        flush();
        [column, last] = [-1, null];
        continue;
      }
      const x = Math.round(left + (times[row] - min) * perSecond);
      if (x !== column) {
        flush();
        column = x;
        least = last === null ? value : Math.min(value, last);
        most = last === null ? value : Math.max(value, last);
      } else if (value < least) least = value;
      else if (value > most) most = value;
      last = value;
    }
    flush();
  });
}

function yScale(latest, yKind) {
  if (yKind === "log") return { distr: 3, range: () => latest.current.yRange };
  if (yKind === "rows") return { range: () => latest.current.yRange };
  return { range: (u, low, high) => [0, Math.max(1e-9, high || 1) * 1.08] };
}

function paintBehind(u, props) {
  for (const [from, to] of props.spans || []) {
    const left = u.valToPos(from, "x", true);
    const right = Math.max(left + 2, u.valToPos(to, "x", true));
    u.ctx.fillStyle = readColor("--span");
    u.ctx.fillRect(left, u.bbox.top, right - left, u.bbox.height);
  }
  if (props.paint) props.paint(u, u.ctx);
}

function paintCursor(u, moment) {
  if (moment === null || moment === undefined) return;
  u.ctx.fillStyle = readColor("--text");
  u.ctx.fillRect(u.valToPos(moment, "x", true) - devicePixelRatio / 2, u.bbox.top, Math.max(1, devicePixelRatio), u.bbox.height);
}

function clip(u, draw) {
  u.ctx.save();
  u.ctx.beginPath();
  u.ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
  u.ctx.clip();
  draw();
  u.ctx.restore();
}

function formatTick(value, step) {
  return new Date(value * 1000).toISOString().slice(11, step < 1 ? 23 : 19);
}

function formatPlain(u, splits) {
  return splits.map((value) => (value === null ? "" : Math.abs(value) >= 1e6 ? `${value / 1e6}M` : Math.abs(value) >= 1e4 ? `${value / 1e3}k` : String(Number(value.toPrecision(4)))));
}

// Paints rows of spans: [{label, spans: [{from, to, color, text, share}], marks: [t], phases: [[text, t]]}],
// the first on top. A `share` fills that much of a span's height; `phases` get the lower half of a row.
function paintRows(u, ctx, rows) {
  rows.forEach((row, place) => {
    const top = u.valToPos(rows.length - place, "y", true);
    const height = u.valToPos(rows.length - place - 1, "y", true) - top;
    const box = { top: top + height * 0.12, height: height * (row.phases ? 0.5 : 0.76) };
    for (const span of row.spans) paintSpan(u, ctx, span, box);
    for (const mark of row.marks || []) paintMark(u, ctx, mark, { top: top + height * 0.1, height: height * 0.8 });
    if (row.phases) paintPhases(u, ctx, row.phases, { top: top + height * 0.66, height: height * 0.3 });
  });
}

function paintSpan(u, ctx, span, { top, height }) {
  const ratio = devicePixelRatio;
  const left = u.valToPos(span.from, "x", true);
  const right = u.valToPos(span.to, "x", true);
  const width = Math.max(2 * ratio, right - left);
  ctx.fillStyle = readColor(span.color);
  ctx.fillRect(left, top, width, height);
  if (span.share) {
    const filled = Math.max(2 * ratio, height * span.share);
    ctx.fillStyle = readColor("--bad");
    ctx.fillRect(left, top + height - filled, width, filled);
  }
  if (!span.text || right - left <= 30 * ratio) return;
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, right - left, height);
  ctx.clip();
  writeText(ctx, span.text, Math.max(left, u.bbox.left) + 4 * ratio, top + height / 2);
  ctx.restore();
}

function writeText(ctx, text, x, y) {
  ctx.fillStyle = readColor("--text");
  ctx.font = `${11 * devicePixelRatio}px system-ui`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  ctx.fillText(text, x, y);
}

function paintMark(u, ctx, mark, { top, height }) {
  const x = u.valToPos(mark, "x", true);
  ctx.fillStyle = readColor("--text");
  ctx.beginPath();
  ctx.moveTo(x, top);
  ctx.lineTo(x - 4 * devicePixelRatio, top + height);
  ctx.lineTo(x + 4 * devicePixelRatio, top + height);
  ctx.fill();
}

// A triangle at each moment, and its name.
function paintPhases(u, ctx, phases, box) {
  const ratio = devicePixelRatio;
  ctx.font = `${11 * ratio}px system-ui`;
  const marks = [...phases].sort((a, b) => a[1] - b[1]).map(([text, t]) => ({ text, t, x: u.valToPos(t, "x", true), width: ctx.measureText(text).width }));
  for (const { texts, left } of groupPhases(marks, 8 * ratio)) writeText(ctx, texts.join(", "), left, box.top + box.height / 2);
  for (const mark of marks) paintMark(u, ctx, mark.t, box);
}

// Names stand to the right of their marks; of marks so close that a name would be over the next
// one, all names stand after the last. Pure.
function groupPhases(marks, space) {
  const groups = [];
  for (const { text, x, width } of marks) {
    const last = groups[groups.length - 1];
    const isClose = last && x < last.left + last.width + space;
    const group = isClose ? last : { texts: [], width: 0 };
    if (!isClose) groups.push(group);
    group.texts.push(text);
    group.width += width + space;
    // Not over the name of the group before.
    group.left = x + space;
  }
  return groups;
}

function rowAxis(rows) {
  return {
    yKind: "rows",
    yRange: [0, Math.max(1, rows.length)],
    ySplits: () => rows.map((row, place) => rows.length - place - 0.5),
    yLabels: () => rows.map((row) => (row.label.length > LONGEST_LABEL ? `…${row.label.slice(1 - LONGEST_LABEL)}` : row.label)),
  };
}

// replay.js
// Replay of a run that has ended: what its events said at a moment. Pure. Times are seconds since
// the Unix epoch unless a name says otherwise.


const SPEEDS = [0.5, 1, 2, 5, 10, 60];

// The next position in seconds from the start; it stops at `length`.
function advance(at, elapsedS, speed, length) {
  return Math.min(length, Math.max(0, at) + Math.max(0, elapsedS) * speed);
}

// A log as it was at that moment.
function cutLog(log, moment) {
  const us = moment * 1e6;
  const events = [log.meta, ...log.ticks, ...log.faults, ...log.states, ...log.found, ...log.logs, log.end];
  return addEvents(emptyLog(), events.filter((event) => event && event.t <= us), true);
}

function cutLogs(logs, moment) {
  return Object.fromEntries(Object.entries(logs).map(([part, log]) => [part, cutLog(log, moment)]));
}

// Bins with nothing in those that had not begun; their places stay, so that no axis moves.
function cutBins(bins, moment) {
  const isPast = bins.times.map((t) => t - bins.seconds / 2 <= moment);
  const keep = (values, otherwise) => values.map((value, place) => (isPast[place] ? value : otherwise));
  return {
    ...bins,
    due: keep(bins.due, null), acknowledged: keep(bins.acknowledged, null), received: keep(bins.received, null),
    latency: keep(bins.latency, {}), never: keep(bins.never, 0),
  };
}

// Spans that had begun; one that had not ended ends at the moment.
function cutSpans(spans, moment) {
  return spans.filter((span) => span.from <= moment).map((span) => ({ ...span, to: Math.min(span.to, moment), ...(span.phases ? { phases: span.phases.filter(([, t]) => t <= moment) } : {}) }));
}

function cutRows(rows, moment) {
  return rows.map((row) => ({ ...row, spans: cutSpans(row.spans, moment) }));
}

// How many messages came how far, by a log of a run.
function flowOfLog(log) {
  const tick = log && log.ticks[log.ticks.length - 1];
  if (!tick || tick.counters.sent === undefined) return [];
  const count = (name) => tick.counters[name] || 0;
  return [["sent", count("sent")], ["source", count("acknowledged")], ["received", count("received")]].map(([stage, value]) => ({ stage, count: value, lost: 0, copies: 0 }));
}

// stages.js
// What belongs to one stage of the flow: findings, lanes, faults, rates, states and processes. Pure.

const STAGES = ["sent", "source", "mirror", "target", "received"];

const STAGE_FINDINGS = {
  sent: /reused|unexpected/,
  source: /never-stored|^lost: expired$|source|superseded|torn|inconsistent/,
  mirror: /not-mirrored|altered|corrupted|unreadable|batch/,
  target: /target|superseded|vanished/,
  received: /undelivered|unlocated|pending|poll|reordered$| read$|tail/,
};
const STAGE_PARTS = { sent: /\bproducer/, source: /\bsource\b/, mirror: /\bmirror\b/, target: /\btarget\b/, received: /\bconsumer/ };
const STAGE_RATES = { sent: ["due"], source: ["acknowledged"], mirror: [], target: [], received: ["received"] };
const STAGE_ROWS = {
  sent: ["producer_to_source"], source: ["producer_to_source"], mirror: ["source_to_target"],
  target: ["source_to_target", "log_to_consumers"], received: ["log_to_consumers"],
};

// Without a stage everything belongs.
function isFindingOf(stage, finding) {
  return !stage || STAGE_FINDINGS[stage].test(finding);
}

function isPartOf(stage, text) {
  return !stage || STAGE_PARTS[stage].test(text);
}

function isRateOf(stage, name) {
  return !stage || STAGE_RATES[stage].includes(name);
}

function isRowOf(stage, name) {
  return !stage || STAGE_ROWS[stage].includes(name);
}

// Lanes with a finding of the stage.
function lanesOf(stage, lanes) {
  return stage ? lanes.filter((lane) => Object.keys(lane.findings).some((finding) => isFindingOf(stage, finding))) : lanes;
}

// Logs whose states and processes are those of the stage.
function logsOf(stage, logs) {
  if (!stage) return logs;
  return Object.fromEntries(Object.entries(logs).map(([part, log]) => [part, {
    ...log,
    states: log.states.filter((event) => isPartOf(stage, `${part} ${event.object}`)),
    ticks: log.ticks.map((tick) => ({ ...tick, processes: tick.processes.filter((usage) => isPartOf(stage, `${part === "run" ? "" : part} ${usage.name}`)) })),
  }]));
}

// tracks.js
// The tracks of a run over one time axis: faults, rate, latency, lanes, states, CPU and memory.
// Where a stage is chosen they show what belongs to it; in a replay, what had happened.


// Of a rate that is drawn; shorter bins are averaged.
const LEAST_RATE_S = 0.1;
const LINES = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7"];

// `times` is the chosen stretch {from, to} in seconds from the start, `stage` what was chosen in the
// flow, `moment` where a replay stands; all may be null.
function Tracks({ bins, lanes, laneStart, logs, resultFaults, windows, thresholds, times, stage, moment, onZoom, isSoFar, children }) {
  const whole = wholeRange(bins, logs);
  const until = (rows) => (moment === null ? rows : cutRows(rows, moment));
  const past = moment === null ? logs : cutLogs(logs, moment);
  const all = faultSpans(resultFaults, logs.run ? logs.run.faults : [], whole[1], windows).filter((fault) => isPartOf(stage, fault.what));
  const faults = moment === null ? all : cutSpans(all, moment);
  const range = [whole[0] + (times.from ?? 0), times.to === null ? whole[1] : whole[0] + times.to];
  const zoom = (from, to) => onZoom(from === undefined ? { from: "", to: "" } : { from: Math.max(0, from - whole[0]).toFixed(2), to: (to - whole[0]).toFixed(2) });
  const shared = { range, onZoom: zoom, spans: faults.map((fault) => [fault.from, fault.to]), cursor: moment };
  const note = isSoFar ? ", so far" : "";
  const inRange = (t) => t >= range[0] && t <= range[1];
  const own = logsOf(stage, past);
  const usage = usageSeries(own);
  const states = stateRows(own, Math.min(whole[1], moment ?? Infinity));
  const shownLanes = lanesOf(stage, lanes);
  const shownBins = moment === null ? bins : cutBins(bins, moment);
  // The lowest track has the time axis.
  const lowest = usage.names.length ? "usage" : states.length ? "states" : shownLanes.length ? "lanes" : "latency";
  return html`<section aria-labelledby="time"><h2 id="time">Over time${note}</h2>
    ${children}
    <p class="quiet">Drag over a chart to zoom; double-click to see everything.
      ${times.from !== null || times.to !== null ? html` <button type="button" onClick=${() => zoom()}>Show everything</button>` : null}</p>
    ${faults.length ? html`<${FaultTrack} faults=${faults} shared=${shared} />` : html`<p class="quiet">No faults${stage ? " of this stage" : ""}${note}.</p>`}
    <${RateTrack} bins=${shownBins} stage=${stage} shared=${shared} note=${note} inRange=${inRange} />
    <${LatencyTrack} bins=${shownBins} bounds=${latencyRange(bins)} limits=${latencyLimits(thresholds)} shared=${shared} note=${note} inRange=${inRange} isLast=${lowest === "latency"} />
    ${shownLanes.length ? html`<${LaneTrack} rows=${until(laneRows(shownLanes, laneStart))} shared=${shared} isLast=${lowest === "lanes"} />` : null}
    ${stage && lanes.length && !shownLanes.length ? html`<p class="quiet">None of the lanes has a finding of this stage.</p>` : null}
    <${StateTrack} rows=${states} elections=${electionTimes(own)} shared=${shared} isLast=${lowest === "states"} />
    <${UsageTracks} usage=${usage} shared=${shared} inRange=${inRange} />
  </section>`;
}

function wholeRange(bins, logs) {
  const half = bins.seconds / 2;
  const times = bins.times.length ? [bins.times[0] - half, bins.times[bins.times.length - 1] + half] : [];
  const ticks = times.length ? [] : Object.values(logs).flatMap((log) => log.ticks.map((tick) => tick.t / 1e6));
  const all = [...times, ...ticks];
  const [low, high] = all.length ? [all.reduce((a, b) => Math.min(a, b)), all.reduce((a, b) => Math.max(a, b))] : [0, 1];
  return [low, Math.max(high, low + 0.5)];
}

function FaultTrack({ faults, shared }) {
  const rows = faultRows(faults);
  const isWhole = rows.length === faults.length;
  const cells = () => faults.map((fault) => [fault.what, formatClock(fault.from * 1e6), formatClock(fault.to * 1e6), fault.phases.map(([phase, t]) => `${phase} ${describePhase(fault, phase, t)}`).join(", ") || "–"]);
  return html`<${Track} ...${shared} title=${isWhole ? "Faults; triangles: detected, recovered, drained" : `Faults: ${formatCount(faults.length)}, a row for each kind; the table has each, and when it was detected`} height=${24 + (isWhole ? 40 : 24) * rows.length} series=${[]} columns=${[shared.range]} ...${rowAxis(rows)} paint=${(u, ctx) => paintRows(u, ctx, rows)} />
    <${DataTable} caption="faults" columns=${["fault", "began", "ended", "phases"]} rows=${cells} />`;
}

function describePhase(fault, phase, t) {
  return phase === "drained" && t >= fault.to ? `${(t - fault.to).toFixed(2)} s after its end` : `after ${(t - fault.from).toFixed(2)} s`;
}

function RateTrack({ bins, stage, shared, note, inRange }) {
  const series = [
    { label: "due", color: "--c2", format: formatRate },
    { label: "acknowledged", color: "--c0", format: formatRate },
    { label: "received", color: "--c1", format: formatRate },
  ].filter((each) => isRateOf(stage, each.label));
  if (!series.length) return html`<p class="quiet">Messages per second are not counted at this stage.</p>`;
  const values = series.map((each) => bins[each.label]);
  const hasBoth = series.length === 3;
  const drawn = values.map((each) => smoothRates(each, bins.seconds, LEAST_RATE_S));
  const over = bins.seconds < LEAST_RATE_S ? `, means over ${LEAST_RATE_S} s` : "";
  const rows = () => bins.times.map((t, place) => [t, ...values.map((each) => each[place])]).filter(([t]) => inRange(t)).map(([t, ...each]) => [formatClock(t * 1e6), ...each.map(formatRate)]);
  return html`<${Track} ...${shared} title=${`Messages per second${over}${note}${hasBoth ? "; the gap between acknowledged and received is filled" : ""}`} height=${170} series=${series}
      columns=${[bins.times, ...drawn]} bands=${hasBoth ? [{ series: [2, 3], fill: "--gap" }] : []} />
    <${DataTable} caption="messages per second" columns=${["time (UTC)", ...series.map((each) => each.label)]} rows=${rows} />`;
}

function LatencyTrack({ bins, bounds, limits, shared, note, inRange, isLast }) {
  const [p50, p99] = [percentileSeries(bins, 50), percentileSeries(bins, 99)];
  const most = Math.max(1, ...bins.latency.map((buckets) => Math.max(0, ...Object.values(buckets))));
  const paint = (u, ctx) => { paintHeat(u, ctx, bins, bounds, most); paintLimits(u, ctx, limits); };
  const series = [{ label: "p50", color: "--c1", format: formatUs }, { label: "p99", color: "--c3", format: formatUs }];
  const rows = () => bins.times.map((t, place) => [t, p50[place], p99[place], bins.never[place]]).filter(([t]) => inRange(t)).map(([t, low, high, never]) => [formatClock(t * 1e6), formatUs(low), formatUs(high), formatCount(never)]);
  const labels = (u, splits) => splits.map((value) => (value <= bounds.high ? formatUs(value) : ""));
  return html`<${Track} ...${shared} title=${`Latency from the intended send, log scale${note}; darker: more messages${bounds.hasNever ? "; red at the top: never arrived" : ""}`} height=${isLast ? 250 : 220} isLast=${isLast}
      series=${series} columns=${[bins.times, p50, p99]} yKind="log" yRange=${[bounds.low, bounds.limit]} yLabels=${labels} ySplits=${() => roundLatencies(bounds.low, bounds.high)} paint=${paint} />
    <${DataTable} caption="latency" columns=${["time (UTC)", "p50", "p99", "never"]} rows=${rows} />`;
}

// Thresholds on latencies: [[text, µs]].
function latencyLimits(thresholds) {
  const found = (thresholds || []).map((each) => [each.threshold, /latency_(us|ms|s)_\w+ *<=? *([\d.]+)/.exec(each.threshold)]);
  return found.filter(([, match]) => match).map(([text, match]) => [text, Number(match[2]) * { us: 1, ms: 1e3, s: 1e6 }[match[1]]]);
}

function paintLimits(u, ctx, limits) {
  ctx.strokeStyle = ctx.fillStyle = readColor("--bad");
  ctx.font = `${11 * devicePixelRatio}px system-ui`;
  ctx.textAlign = "left";
  ctx.textBaseline = "bottom";
  ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
  for (const [text, value] of limits) {
    const y = u.valToPos(value, "y", true);
    ctx.beginPath();
    ctx.moveTo(u.bbox.left, y);
    ctx.lineTo(u.bbox.left + u.bbox.width, y);
    ctx.stroke();
    ctx.fillText(text, u.bbox.left + 4, y - 2);
  }
  ctx.setLineDash([]);
}

// Powers of ten; over a short range also 2 and 5 times those.
function roundLatencies(low, high) {
  const factors = high / low < 200 ? [1, 2, 5] : [1];
  const found = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += 1) {
    found.push(...factors.map((factor) => factor * 10 ** power).filter((value) => value >= low && value <= high));
  }
  return found;
}

function paintHeat(u, ctx, bins, bounds, most) {
  const half = bins.seconds / 2;
  bins.times.forEach((t, place) => {
    if (t + half < u.scales.x.min || t - half > u.scales.x.max) return;
    const left = u.valToPos(t - half, "x", true);
    const width = Math.max(1, u.valToPos(t + half, "x", true) - left);
    for (const [bucket, count] of Object.entries(bins.latency[place])) {
      const top = u.valToPos(bucketEnd(Number(bucket)), "y", true);
      const bottom = u.valToPos(Math.max(bounds.low, bucketStart(Number(bucket))), "y", true);
      ctx.fillStyle = heatColor(Math.log1p(count) / Math.log1p(most));
      ctx.fillRect(left, top, width, Math.max(1, bottom - top));
    }
    if (bins.never[place]) {
      ctx.fillStyle = readColor("--bad");
      ctx.fillRect(left, u.bbox.top, Math.max(3, width), 12 * devicePixelRatio);
    }
  });
  if (bounds.hasNever) {
    ctx.fillStyle = readColor("--text");
    ctx.font = `${11 * devicePixelRatio}px system-ui`;
    ctx.textBaseline = "top";
    ctx.textAlign = "left";
    ctx.fillText("never", u.bbox.left + 4, u.bbox.top + 1);
  }
}

function LaneTrack({ rows, shared, isLast }) {
  const found = (lane) => Object.entries(lane.findings).map(([name, count]) => `${name}: ${formatCount(count)}`).join(", ") || "none";
  return html`<${Track} ...${shared} title=${`Lanes, the worst ${rows.length} first, by intended send; the height of the red is the share of messages with a finding`} height=${(isLast ? 48 : 16) + 20 * rows.length} isLast=${isLast} series=${[]} columns=${[shared.range]} ...${rowAxis(rows)} paint=${(u, ctx) => paintRows(u, ctx, rows)} />
    <${DataTable} caption="lanes" columns=${["producer", "topic", "lane", "due", "affected", "findings"]} rows=${() => rows.map(({ lane }) => [lane.producer, lane.topic, lane.lane, formatCount(lane.due), formatCount(lane.affected), found(lane)])} />`;
}

function StateTrack({ rows, elections, shared, isLast }) {
  if (!rows.length) return html`<p class="quiet">No states of brokers here.</p>`;
  const all = elections.length ? [...rows, { label: "elections", spans: [], marks: elections.map((each) => each.t) }] : rows;
  const cells = () => rows.flatMap((row) => row.spans.map((span) => [row.label, formatClock(span.from * 1e6), span.text, span.reason || "–"]));
  return html`<${Track} ...${shared} title="Brokers and controllers by state; triangles: elections" height=${(isLast ? 48 : 16) + 18 * all.length} isLast=${isLast} series=${[]} columns=${[shared.range]} ...${rowAxis(all)} paint=${(u, ctx) => paintRows(u, ctx, all)} />
    <${DataTable} caption="states and elections" columns=${["object", "from", "state", "reason"]} rows=${() => [...cells(), ...elections.map((each) => ["election", formatClock(each.t * 1e6), each.what, "–"])]} />`;
}

function UsageTracks({ usage, shared, inRange }) {
  if (!usage.names.length) return html`<p class="quiet">No CPU and memory of processes here.</p>`;
  // More lines would repeat colours.
  const drawn = busiest(usage, LINES.length);
  const which = drawn.names.length < usage.names.length ? `the ${drawn.names.length} busiest of ${formatCount(usage.names.length)} processes` : "each process";
  const series = (format) => drawn.names.map((label, place) => ({ label, color: LINES[place], format }));
  const cores = (value) => `${value.toFixed(2)} cores`;
  const bytes = (u, splits) => splits.map((value) => (value === null ? "" : formatBytes(value)));
  const rows = () => usage.times.flatMap((t, place) => (inRange(t) ? usage.names.map((name, row) => [formatClock(t * 1e6), name, usage.cpu[row][place], usage.memory[row][place]]) : []));
  return html`<${Track} ...${shared} title=${`CPU of ${which} (cores)`} height=${130} series=${series(cores)} columns=${[usage.times, ...drawn.cpu]} />
    <${Track} ...${shared} title=${`Memory of ${which}`} height=${150} series=${series(formatBytes)} columns=${[usage.times, ...drawn.memory]} yLabels=${bytes} isLast=${true} />
    <${DataTable} caption="CPU and memory" columns=${["time (UTC)", "process", "cores", "memory"]} rows=${() => rows().filter(([, , cpu, memory]) => cpu !== null || memory !== null).map(([t, name, cpu, memory]) => [t, name, cpu === null ? "–" : cpu.toFixed(2), formatBytes(memory)])} />`;
}

// cluster.js
// One cluster: its nodes and what may be done to them, partitions, order of events, topics.


function Cluster({ address }) {
  const id = address.name.includes("/") ? `run:${address.name}` : `cluster:${address.name}`;
  const state = useThing(id);
  const mayAct = useActions() && state.isAlive;
  const set = (changes) => replaceQuery(address, changes);
  if (!state.thing) return html`<main><${WayBack} name=${address.name} /><h1>${address.name}</h1>${state.problem ? html`<${Problem} text=${state.problem} />` : html`<p class="quiet">Loading…</p>`}</main>`;
  const { log } = state;
  const partitions = readPartitions(log);
  const window = timeWindow(log, address.query);
  return html`<main>
    <${WayBack} name=${address.name} />
    <h1><span class="kind">${kindOf(state.thing)}</span> ${state.thing.name}</h1>
    <p class="quiet">${describeAddress(state.thing.details)}</p>
    <p class="sentence big">${describeThing(state.thing, log)}</p>
    <${DataAge} state=${state} />
    <${Notes} notes=${window.notes} />
    <${Nodes} id=${id} log=${log} mayAct=${mayAct} isAlive=${state.isAlive} own=${state.thing.details.node} />
    <${Faults} id=${id} log=${log} mayAct=${mayAct} isAlive=${state.isAlive} />
    <${ClusterTracks} log=${log} window=${window} query=${address.query} set=${set} />
    <${Partitions} rows=${partitions} query=${address.query} set=${set} />
    ${state.thing.details.node ? null : html`<${ClusterTrace} id=${id} isAlive=${state.isAlive} window=${window.isChosen ? window.range : null} />`}
    ${state.thing.details.bootstrap ? html`<${LiveTail} id=${id} topics=${[...new Set(partitions.map((row) => row.topic))].sort(compareNames)} chosen=${address.query.topic || ""} onChoose=${(topic) => set({ topic })} isAlive=${state.isAlive} />` : null}
  </main>`;
}

// Addresses for clients; of a single node, whose view of its cluster this is.
function describeAddress({ bootstrap, node, address }) {
  return node ? `its cluster as ${node} at ${address} sees it; counters and processes are its own` : bootstrap;
}

// Leaders, in-sync and eligible replicas, from the last state of each partition. Pure.
function readPartitions(log) {
  return currentStates(log, ["partition"]).map((event) => {
    const name = event.object.slice("partition ".length);
    const { leader, epoch, replicas = [], in_sync: inSync = [], eligible = [] } = event.details || {};
    const problem = leader < 0 ? "no leader" : inSync.length < replicas.length ? "under-replicated" : "";
    return { name, topic: name.replace(/-\d+$/, ""), leader, epoch, replicas, inSync, eligible, problem };
  }).sort((a, b) => Number(!a.problem) - Number(!b.problem) || compareNames(a.name, b.name));
}

function Nodes({ id, log, mayAct, isAlive, own }) {
  const nodes = currentStates(log, ["broker", "controller"]).sort((a, b) => compareNames(a.object, b.object));
  const tick = log.ticks[log.ticks.length - 1];
  const before = log.ticks[log.ticks.length - 2];
  const usageOf = (name) => {
    const now = tick && tick.processes.find((each) => each.name === name);
    const old = now && before && before.processes.find((each) => each.name === name && each.pid === now.pid);
    return { bytes: now ? now.resident_bytes : null, cores: old && tick.t > before.t ? ((now.cpu_s - old.cpu_s) * 1e6) / (tick.t - before.t) : null };
  };
  return html`<section aria-labelledby="nodes"><h2 id="nodes">Brokers and controllers</h2>
    <ul class="nodes">${nodes.map((event) => html`<${NodeCard} key=${event.object} id=${id} event=${event} usage=${usageOf(event.object)} mayAct=${mayAct && (!own || own === event.object)} isAlive=${isAlive} isSingle=${Boolean(own)} />`)}</ul>
    ${isAlive && !mayAct ? html`<p class="quiet">With <code>shoal serve --allow-actions</code> this page can kill, pause, cut off and restart nodes.</p>` : null}
  </section>`;
}

function NodeCard({ id, event, usage, mayAct, isAlive, isSingle }) {
  const details = event.details || {};
  const isController = event.object.startsWith("controller ");
  const isInside = isController && !details.address;
  const state = isAlive ? event.state : "ended";
  const facts = [
    isInside ? "inside the supervisor" : details.address,
    details.replicas ? `leads ${formatCount(details.leads)} of ${plural(details.replicas, "replica")}` : "",
    details.behind ? `behind in ${formatCount(details.behind)}` : "",
    usage.cores === null || !isAlive ? "" : `${usage.cores.toFixed(2)} cores`,
    usage.bytes === null || !isAlive ? "" : formatBytes(usage.bytes),
  ].filter(Boolean);
  return html`<li class="node"><div class="head"><b>${event.object}</b> <span class=${`state ${stateColor(state).slice(2)}`}>${state}</span></div>
    <p class="quiet">${facts.join(" · ")}</p>
    ${event.reason && isAlive ? html`<p class="quiet">${event.reason}</p>` : null}
    ${mayAct && !isInside ? html`<${NodeActions} id=${id} event=${event} isSingle=${isSingle} />` : null}</li>`;
}

function NodeActions({ id, event, isSingle }) {
  const [kind, number] = event.object.split(" ");
  const button = (action, label, isDangerous) => html`<${ActionButton} key=${action} body=${{ thing: id, action, node: Number(number) }} label=${label} title=${`${label.toLowerCase()} ${kind} ${number}`} isDangerous=${isDangerous} />`;
  // A single node that is paused cannot write that it is.
  if (isSingle) return html`<p class="actions">${button("kill", "Kill", true)} ${button("pause", "Pause")} ${button("resume", "Resume")}</p>`;
  if (event.state === "dead") return html`<p class="actions">${button("restart", "Restart")}</p>`;
  if (event.state === "paused") return html`<p class="actions">${button("resume", "Resume")} ${button("kill", "Kill", true)}</p>`;
  return html`<p class="actions">${button("kill", "Kill", true)} ${button("pause", "Pause")} ${button("cut", "Cut off")} ${button("heal", "Heal")}</p>`;
}

function Faults({ id, log, mayAct, isAlive }) {
  const faults = isAlive ? activeFaults(log.faults) : [];
  if (!faults.length) return null;
  return html`<section aria-labelledby="faults"><h2 id="faults">Faults now</h2>
    <ul>${faults.slice(0, 20).map((text) => html`<li>${text}</li>`)}</ul>
    ${faults.length > 20 ? html`<p class="quiet">and ${formatCount(faults.length - 20)} more</p>` : null}
    ${mayAct ? html`<p class="actions"><${ActionButton} body=${{ thing: id, action: "heal" }} label="Heal all" title="end all faults" /></p>` : null}</section>`;
}

function timeWindow(log, query) {
  const times = [...log.ticks, ...log.states].map((event) => event.t / 1e6);
  const first = log.ticks.length ? log.ticks[0].t / 1e6 : Math.min(...times, Infinity);
  const last = Math.max(...times, first + 1);
  const whole = times.length ? [first, last] : [0, 1];
  const chosen = chooseTime(query, whole[1] - whole[0]);
  return { whole, notes: chosen.notes, isChosen: chosen.from !== null || chosen.to !== null, range: [whole[0] + (chosen.from ?? 0), chosen.to === null ? whole[1] : whole[0] + chosen.to] };
}

function ClusterTracks({ log, window, query, set }) {
  if (log.ticks.length < 2) return html`<p class="quiet">Not enough ticks for charts yet.</p>`;
  const { whole, range } = window;
  const zoom = (from, to) => set(from === undefined ? { from: "", to: "" } : { from: Math.max(0, from - whole[0]).toFixed(2), to: (to - whole[0]).toFixed(2) });
  const shared = { range, onZoom: zoom, spans: [] };
  const inRange = (t) => t >= range[0] && t <= range[1];
  const ticks = sortByTime(log.ticks);
  const times = ticks.map((tick) => tick.t / 1e6);
  const perSecond = (value) => `${formatCount(value)}/s`;
  const logs = { run: log };
  const usage = usageSeries(logs);
  return html`<section aria-labelledby="time"><h2 id="time">Over time</h2>
    <p class="quiet">Drag over a chart to choose a time; the order of events below shows the same.${window.isChosen ? html` <button type="button" onClick=${() => zoom()}>Show everything</button>` : null}</p>
    <${Track} ...${shared} title="Records per second that producers append" height=${130} series=${[{ label: "records", color: "--c0", format: perSecond }]} columns=${[times, rates(ticks, "records_in")]} />
    <${StateTrack} rows=${stateRows(logs, whole[1])} elections=${electionTimes(logs)} shared=${shared} isLast=${!usage.names.length} />
    <${UsageTracks} usage=${usage} shared=${shared} inRange=${inRange} /></section>`;
}

function Partitions({ rows, query, set }) {
  const [count, setCount] = useState(PAGE_ROWS);
  const text = (query.filter || "").toLowerCase();
  const shown = rows.filter((row) => `${row.name} ${row.problem}`.toLowerCase().includes(text));
  const troubled = rows.filter((row) => row.problem).length;
  return html`<section aria-labelledby="partitions"><h2 id="partitions">Partitions</h2>
    ${rows.length ? html`<p>${troubled ? `${formatCount(troubled)} of ${plural(rows.length, "partition")} ${troubled === 1 ? "lacks" : "lack"} a leader or a replica in sync.` : rows.length === 1 ? "The one partition has a leader and all replicas in sync." : `All ${plural(rows.length, "partition")} have a leader and all replicas in sync.`}</p>` : html`<p class="quiet">There is no topic yet.</p>`}
    ${rows.length > 8 ? html`<p class="filter"><label>Filter <input type="search" value=${query.filter || ""} placeholder="topic or problem" onInput=${(event) => set({ filter: event.target.value })} /></label></p>` : null}
    ${rows.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="table: partitions"><table>
      <thead><tr>${["partition", "leader", "epoch", "replicas", "in sync (ISR)", "eligible (ELR)", ""].map((name) => html`<th scope="col">${name || html`<span class="hidden">problem</span>`}</th>`)}</tr></thead>
      <tbody>${shown.slice(0, count).map((row) => html`<tr><td>${row.name}</td><td>${row.leader < 0 ? "none" : row.leader}</td><td>${row.epoch}</td><td>${row.replicas.join(", ")}</td><td>${row.inSync.join(", ") || "none"}</td><td>${row.eligible.join(", ") || "–"}</td><td class=${row.problem ? "parked" : ""}>${row.problem}</td></tr>`)}</tbody></table></div>` : null}
    ${shown.length > count ? html`<button type="button" onClick=${() => setCount(count + PAGE_ROWS)}>Show more of ${plural(shown.length, "partition")}</button>` : null}</section>`;
}

// facts.js
// The numbers of a judged run: tiles, and a table for everything that the definitions name.


const RANKS = ["p50", "p75", "p90", "p95", "p99", "p99.9", "p99.99"];
const STAGE_TITLES = {
  producer_to_source: "producers to source log",
  source_to_target: "source log to target log (the mirror)",
  log_to_consumers: "log to consumers",
};
const LATENCY_TITLES = {
  e2e_intended: "end to end, from the intended send",
  e2e_actual: "end to end, from the actual send",
  producer: "producer, send to acknowledgement",
  replication: "replication, source append to target append",
  staleness: "staleness, known to exist to polled (a lower bound)",
};

// A statistic of the messages owed: lost and pending ones are infinitely late.
function owedLatency(latency, name) {
  if (!latency) return null;
  if (!latency.undelivered) return latency[name] ?? null;
  if (!RANKS.includes(name)) return "never";
  return latency.owed[name] ?? "never";
}

function countCopies(metrics) {
  return metrics.deliveries - (metrics.re_reads || 0) - metrics.delivered;
}

// The first numbers that people ask for, each with what it is a share of.
function Tiles({ group, acks }) {
  const tiles = listTiles(group, acks);
  return html`<dl class="tiles">${tiles.map((tile) => html`<div class=${`tile ${tile.tone || ""}`}><dt>${tile.name}</dt><dd><b>${tile.value}</b><span>${tile.note}</span></dd></div>`)}</dl>`;
}

// {name, value, note, tone} each. Pure.
function listTiles(group, acks) {
  const { metrics, findings, throughput } = group;
  const latency = metrics.latency_us.e2e_intended;
  const copies = countCopies(metrics);
  const reordered = (findings.reordered || { count: 0 }).count;
  const total = (throughput || []).find((row) => row.topic === null);
  const tail = (latency && latency.count) >= 10000 ? "p99.99" : "max";
  const late = (name) => ({ name: `latency ${name}`, value: formatBrief(owedLatency(latency, name)), note: latency && latency.undelivered ? `${formatCount(latency.undelivered)} never arrived` : "end to end", tone: owedLatency(latency, name) === "never" ? "bad" : "" });
  return [
    ...deliveryTiles(metrics, acks),
    { name: "duplicated", value: formatCount(copies), note: `of ${plural(metrics.deliveries, "delivery", "deliveries")}`, tone: copies ? "warn" : "" },
    { name: "reordered", value: formatCount(reordered), note: metrics.order === null ? "order unknowable" : `order ${formatRatio(metrics.order)}`, tone: reordered ? "warn" : "" },
    ...(latency ? [late("p50"), late("p99"), late(tail)] : []),
    ...(total ? [{ name: "throughput", value: formatRate(total.delivered_per_s), note: total.delivered_bytes_per_s ? `${formatBytes(total.delivered_bytes_per_s)}/s delivered` : "delivered" }] : []),
  ];
}

function deliveryTiles(metrics, acks) {
  const missing = metrics.attempts - metrics.delivered_attempts;
  if (acks === 0) {
    return [
      { name: "delivered", value: formatShare(metrics.harvest), note: `${formatCount(metrics.delivered_attempts)} of ${plural(metrics.attempts, "message")} sent` },
      { name: "not delivered", value: formatCount(missing), note: "not delivered, nothing promised: acks=0", tone: missing ? "warn" : "" },
    ];
  }
  return [
    { name: "delivered", value: formatShare(metrics.completeness), note: `${formatCount(metrics.delivered_ok)} of ${formatCount(metrics.ok)} acknowledged`, tone: metrics.lost_ok ? "bad" : "good" },
    { name: "lost", value: formatCount(metrics.lost), note: metrics.pending ? `${formatCount(metrics.pending)} pending` : "none pending", tone: metrics.lost ? "bad" : "good" },
    { name: "acknowledged", value: formatShare(metrics.yield), note: `of ${plural(metrics.attempts, "attempt")}, ${formatCount(metrics.unknown)} unknown` },
  ];
}

function Thresholds({ thresholds }) {
  if (!thresholds || !thresholds.length) return null;
  const missed = thresholds.filter((each) => !each.met).length;
  const show = (each) => Object.entries(each.values).map(([group, value]) => `${value === null ? "unknowable" : value === "never" ? value : formatRatio(value)}${Object.keys(each.values).length > 1 ? ` in ${group}` : ""}`).join(", ");
  return html`<section aria-labelledby="thresholds"><h2 id="thresholds">Thresholds${missed ? `: ${missed} of ${thresholds.length} missed` : ": all met"}</h2>
    <ul class="thresholds">${thresholds.map((each) => html`<li class=${each.met ? "met" : "missed"}>${each.met ? "met" : "missed"}: <code>${each.threshold}</code> ${each.metric} is ${show(each)}</li>`)}</ul></section>`;
}

function Groups({ result, chosen, onChoose }) {
  const names = Object.keys(result.groups);
  if (names.length < 2) return null;
  const rows = names.map((name) => {
    const { verdict, metrics } = result.groups[name];
    const latency = metrics.latency_us.e2e_intended;
    return [
      html`<button type="button" aria-pressed=${name === chosen} onClick=${() => onChoose(name)}>${name}</button>`, html`<${Verdict} word=${verdict} />`, formatCount(metrics.delivered), formatCount(metrics.lost),
      formatRatio(metrics.harvest), formatRatio(metrics.duplication), formatRatio(metrics.order), formatUs(owedLatency(latency, "p50")), formatUs(owedLatency(latency, "p99")),
    ];
  });
  return html`<${FactTable} id="groups" title="Consumer groups" columns=${["group", "verdict", "delivered", "lost", "harvest", "duplication", "order", "p50", "p99"]} rows=${rows} />
    <p class="quiet">Each group is judged separately; the verdict of the run is that of the worst, ${result.worst_group}. Shown below: ${chosen}.${(result.left_out || []).length ? ` ${plural(result.left_out.length, "group")} left out, because the file would be too large.` : ""}</p>`;
}

function Stages({ group, mirror, stage: chosen }) {
  const rows = Object.entries(group.stages).filter(([name]) => isRowOf(chosen, name)).map(([name, stage]) => [STAGE_TITLES[name] || name, html`<${Verdict} word=${stage.verdict} />`, stage.findings.join(", ") || "–"]);
  if (!rows.length) return null;
  const used = mirror && mirror.usage;
  const kind = mirror ? ["kind", "mode", "delivery"].map((key) => mirror[key]).filter(Boolean).join(", ") : "";
  const joined = mirror && mirror.rebatched ? `; ${formatCount(mirror.rebatched)} batches were joined into larger ones` : "";
  return html`<${FactTable} id="stages" title="Stage by stage" columns=${["stage", "verdict", "because of"]} rows=${rows} />
    ${used ? html`<p class="quiet">The mirror (${kind}${joined}) used ${used.cpu_s.toFixed(2)} CPU seconds and ${formatBytes(used.peak_memory_bytes)} of memory at most.</p>` : null}`;
}

function Metrics({ group }) {
  const { metrics } = group;
  const rows = [
    ["yield", formatRatio(metrics.yield), `${formatCount(metrics.ok)} acknowledged of ${plural(metrics.attempts, "attempt")}, ${formatCount(metrics.unknown)} unknown`],
    ["harvest", formatRatio(metrics.harvest), `${formatCount(metrics.delivered_attempts)} received of ${plural(metrics.attempts, "attempt")}`],
    ["completeness", formatRatio(metrics.completeness), `${formatCount(metrics.delivered_ok)} received of ${formatCount(metrics.ok)} acknowledged`],
    ["duplication", formatRatio(metrics.duplication), `${formatCount(countCopies(metrics))} copies of ${plural(metrics.deliveries, "delivery", "deliveries")}`],
    ["re-read rate", formatRatio(metrics.re_read_rate), `${formatCount(metrics.re_reads)} of ${plural(metrics.deliveries, "delivery", "deliveries")}`],
    ["order", formatRatio(metrics.order), `F = ${formatCount(metrics.F)} of at most ${formatCount(metrics.F_limit)}, K = ${formatCount(metrics.K)}`],
    ...Object.entries(metrics.range_us || {}).filter(([, value]) => value !== null).map(([name, value]) => [`range of ${name} times`, formatUs(value), "latest − earliest"]),
  ];
  return html`<${FactTable} id="metrics" title="Metrics and ranges" columns=${["metric", "value", "from"]} rows=${rows} />
    <p class="quiet">${formatCount(metrics.unknown)} attempts ended with an unknown outcome, ${formatCount(metrics.recovered)} of which were delivered; ${formatCount(metrics.failed)} failed. ${lossBound(metrics)}</p>`;
}

function lossBound(metrics) {
  const [message, batch] = [metrics.loss_rate_bound_95, metrics.batch_loss_rate_bound_95];
  if (message === null || message === undefined) return "";
  const ofBatches = batch === null || batch === undefined ? "" : `, and below ${Number(batch.toPrecision(2))} if batches were: ${formatCount(metrics.batches)} of them, messages sent or acknowledged together`;
  return `With no loss seen, the loss rate is below ${Number(message.toPrecision(2))} with 95 % confidence if messages were lost independently of each other${ofBatches}.`;
}

function Latencies({ group }) {
  const { metrics } = group;
  const rows = Object.entries(metrics.latency_us).map(([name, latency]) => [LATENCY_TITLES[name] || name, formatCount(latency.count), formatUs(latency.mean), ...RANKS.map((rank) => formatUs(owedLatency(latency, rank))), formatUs(owedLatency(latency, "max"))]);
  if (!rows.length) return null;
  const owed = metrics.lost + metrics.pending;
  return html`<${FactTable} id="latencies" title="Latency" columns=${["latency", "messages", "mean of arrived", ...RANKS, "max"]} rows=${rows} />
    <p class="quiet">Exact values of first deliveries. End-to-end percentiles and the maximum are those of all messages owed: ${formatCount(owed)} lost or pending messages count as infinitely late, "never". ${describeSkew(metrics.clock_skew_us)}</p>`;
}

function describeSkew(skew) {
  if (!skew) return "The clocks of producers and consumers were not compared, so the error of the end-to-end latencies is unknown.";
  if (!skew[0] && !skew[1]) return "";
  const [low, high] = skew.map((bound) => `${bound < 0 ? "" : "+"}${(bound / 1000).toFixed(3)} ms`);
  return `The consumers' clocks were ahead of the producers' clocks by ${low} to ${high}: the true end-to-end latencies are lower by this amount.`;
}

function Throughput({ group }) {
  const rows = (group.throughput || []).map((row) => [row.topic ?? "all topics", formatRate(row.sent_per_s), speed(row.sent_bytes_per_s), formatRate(row.delivered_per_s), speed(row.delivered_bytes_per_s)]);
  if (!rows.length) return null;
  return html`<${FactTable} id="throughput" title="Throughput" columns=${["topic", "sent", "bytes sent", "delivered", "bytes delivered"]} rows=${rows} />`;
}

function speed(value) {
  return value === null || value === undefined ? "–" : `${formatBytes(value)}/s`;
}

// Faults by what happened to the messages that were due while each was active.
function FaultTable({ result, group, stage }) {
  if (!group.windows || !group.windows.length) return null;
  const faults = new Map(result.faults.map((fault) => [fault.fault, fault]));
  const start = group.series ? group.series.start_s : 0;
  const isShown = (fault) => !fault || isPartOf(stage, `${fault.name} ${fault.target}`);
  const rows = group.windows.filter((window) => isShown(faults.get(window.fault))).map((window) => faultRow(window, faults.get(window.fault), start));
  const found = group.windows.filter((window) => window.fault !== null && Object.keys(window.findings).length).map((window) => `fault ${window.fault}: ${Object.entries(window.findings).map(([name, count]) => `${formatCount(count)} ${name}`).join(", ")}`);
  return html`<${FactTable} id="faults" title="Faults" columns=${["fault", "target", "time", "detect", "recover", "drain", "messages", "lost", "copies", "reordered", "yield", "p99"]} rows=${rows} />
    <p class="quiet">Each row is about the messages whose intended send is during the fault. Detect: from its begin to the first message that was lost, refused, unanswered or slower than every message of the 10 s before. Recover: from its begin until messages fare as before again. Drain: from its end until all messages intended before it have arrived.${found.length ? ` Findings among them: ${found.join("; ")}.` : ""}</p>`;
}

function faultRow(window, fault, start) {
  const counts = window.metrics;
  const cells = [formatCount(counts.attempts), formatCount(counts.lost), formatCount(countCopies(counts)), formatCount(window.findings.reordered || 0), formatRatio(counts.yield), formatUs(owedLatency(counts.latency_us.e2e_intended, "p99"))];
  if (!fault) return ["no fault", "", "", "", "", "", ...cells];
  const isFelt = window.time_to_detect_us !== null;
  const time = (value, otherwise) => (value === null ? otherwise : formatUs(value));
  const seconds = (us) => `${(us / 1e6 - start).toFixed(1)} s`;
  return [
    `${fault.fault} ${fault.name}`, formatLinks(fault.target),
    fault.ended_us === null ? `from ${seconds(fault.began_us)}` : `${seconds(fault.began_us)} to ${seconds(fault.ended_us)}`,
    time(window.time_to_detect_us, "not felt"), time(window.time_to_recover_us, isFelt ? "never" : ""), time(window.time_to_drain_us, ""), ...cells,
  ];
}

// compare.js
// Two runs side by side. One run on each side: no difference is judged, the noise is unknown.


function Compare({ address }) {
  const names = [address.query.a || "", address.query.b || ""];
  const [runs, setRuns] = useState(null);
  const [problem, setProblem] = useState("");
  const notes = names.includes("") ? ["The address does not name two runs: tick two in the list of runs."] : [];
  useEffect(() => {
    if (notes.length) return;
    Promise.all(names.map((name) => getJson(`runs/${encodeURIComponent(name)}`))).then(setRuns, (error) => setProblem(error.message));
  }, names);
  return html`<main>
    <p><a href="#/">All runs</a></p><h1>Two runs</h1>
    <${Notes} notes=${notes} />
    ${problem ? html`<${Problem} text=${problem} />` : null}
    ${runs ? html`<${SideBySide} runs=${runs} names=${names} />` : null}
  </main>`;
}

function SideBySide({ runs, names }) {
  const rows = compareRows(runs.map((run) => run.result));
  return html`<div class="scroll" tabindex="0" role="region" aria-label="metrics of both runs"><table class="compare">
      <thead><tr><th scope="col">metric</th>${runs.map((run, place) => html`<th scope="col"><a href=${buildAddress("run", names[place])}>${run.summary.run}</a></th>`)}</tr></thead>
      <tbody>
        <tr><th scope="row">verdict</th>${runs.map((run) => html`<td><${Verdict} word=${run.summary.verdict} /><br />${run.summary.sentence}</td>`)}</tr>
        <tr><th scope="row">flow</th>${runs.map((run) => html`<td>${run.summary.numbers ? html`<${FlowBar} flow=${run.summary.numbers.flow} />` : "–"}</td>`)}</tr>
        ${rows.map(([name, ...cells]) => html`<tr class=${cells[0] === cells[1] ? "" : "changed"}><th scope="row">${name}</th>${cells.map((cell) => html`<td>${cell}</td>`)}</tr>`)}
      </tbody></table></div>
    <p class="quiet">One run on each side shows no noise: whether a rate or a latency differs needs three runs a side. <code>shoal compare</code> judges that.</p>`;
}

function compareRows(results) {
  const read = (get, format) => results.map((result) => (result ? format(get(result)) : "–"));
  const latency = (name) => (result) => owedLatency(result.metrics.latency_us.e2e_intended, name);
  const names = [...new Set(results.flatMap((result) => Object.keys((result || { findings: {} }).findings)))].sort();
  return [
    ...["attempts", "ok", "unknown", "failed", "delivered", "lost", "pending"].map((name) => [name, ...read((result) => result.metrics[name], formatCount)]),
    ...["yield", "harvest", "completeness", "duplication", "order"].map((name) => [name, ...read((result) => result.metrics[name], formatRatio)]),
    ...["p50", "p99", "p99.9"].map((name) => [`end-to-end latency ${name}`, ...read(latency(name), formatUs)]),
    ...names.map((name) => [name, ...read((result) => (result.findings[name] || { count: 0 }).count, formatCount)]),
  ];
}

// demo.js
// The page of shoal demo: acks=1 and acks=all side by side, one button, and what followed.


const ASK_EVERY_MS = 400;

function Demo() {
  const { demo, problem, isConnected } = useDemo();
  if (!demo) return html`<main><h1>Shoal demo</h1>${problem ? html`<${Problem} text=${problem} />` : html`<p class="quiet">Loading…</p>`}</main>`;
  return html`<main>
    <h1>What acks=1 costs when a leader dies</h1>
    ${isConnected ? null : html`<p class="quiet" role="status">The demo has ended. What it found stays in the folder of runs; <code>shoal serve</code> shows it again.</p>`}
    <p>Two clusters, the same settings: 3 brokers, 3 replicas, <code>min.insync.replicas=2</code>, no unclean elections (Kafka's default). Only the producers differ: one is acknowledged by the leader alone, the other by all replicas in sync.</p>
    <${PressButton} demo=${demo} />
    <div class="acks-sides">${demo.sides.map((side) => html`<${DemoSide} key=${side.acks} side=${side} />`)}</div>
    <section aria-labelledby="steps"><h2 id="steps">And mirrors</h2>
      <ol class="steps">${demo.steps.map((step) => html`<${Step} key=${step.title} step=${step} />`)}</ol></section>
    <p><a href="#/">All runs</a></p>
  </main>`;
}

// Asks while the page is visible. A demo that has ended keeps its last state here.
function useDemo() {
  const [state, setState] = useState({ demo: null, problem: "", isConnected: true });
  useEffect(() => {
    let timer = null;
    let isGone = false;
    const ask = async () => {
      try {
        const demo = document.hidden ? undefined : await getJson("demo");
        if (demo === null) setState({ demo: null, problem: "This is not the page of shoal demo.", isConnected: true });
        else if (demo) setState({ demo, problem: "", isConnected: true });
      } catch (error) {
        setState((old) => ({ ...old, problem: error.message, isConnected: false }));
      }
      if (!isGone) timer = setTimeout(ask, ASK_EVERY_MS);
    };
    ask();
    return () => { isGone = true; clearTimeout(timer); };
  }, []);
  return state;
}

const STEPS = {
  waiting: "",
  cutting: "Cutting the followers off…",
  cut: "The followers are cut off; the leaders still acknowledge.",
  killing: "Killing the leaders…",
  killed: "The leaders are dead; a follower of each took over.",
  over: "The leaders are dead; a follower of each took over.",
};

function PressButton({ demo }) {
  const [problem, setProblem] = useState("");
  const press = () => postJson("demo/press", {}).then(() => setProblem(""), (error) => setProblem(error.message));
  const isReady = demo.presses_in_s !== null;
  const step = STEPS[demo.sides[0].step] || "";
  return html`<div class="press">
    ${demo.is_pressed ? null : html`<button type="button" class="press-now" disabled=${!isReady} onClick=${press}>Cut off the followers, kill the leader</button>`}
    <span class="quiet" role="status">${demo.is_pressed ? step : isReady ? `It presses itself in ${Math.ceil(demo.presses_in_s)} s.` : "Starting producers and consumers…"}</span>
    ${problem ? html`<${Problem} text=${problem} />` : null}
  </div>`;
}

function DemoSide({ side }) {
  const isHit = ["killed", "over"].includes(side.step);
  const tone = side.verdict ? (side.verdict === "proven" ? "good" : "bad") : side.lost ? "bad" : "";
  const rate = side.rates[side.rates.length - 1];
  return html`<section class=${`acks-side ${tone}`} aria-labelledby=${`acks-${side.acks}`}>
    <h2 id=${`acks-${side.acks}`}>acks=${side.acks}</h2>
    <p class="quiet">${side.acks === "1" ? "The leader answers at once, before a follower has the message. (Kafka then allows no idempotence.)" : "The leader answers when all replicas in sync have the message."}</p>
    <dl>${[["sent", side.sent], ["acknowledged", side.acknowledged], ["received", side.received]].map(([name, value]) => html`<div><dt>${name}</dt><dd>${formatCount(value)}</dd></div>`)}
      <div><dt>acknowledged now</dt><dd>${side.is_sent ? "–" : formatRate(rate)}</dd></div></dl>
    <${Sparkline} values=${side.rates} label=${`acknowledged per second, acks=${side.acks}`} />
    <${DemoBrokers} step=${side.step} />
    <p class="count" role="status">${describeLosses(side, isHit)}</p>
    ${side.examples.length ? html`<ul class="findings">${side.examples.map((name) => html`<li><a href=${buildAddress("life", side.run, name)}>The life of message ${formatCount(name.sequence)}</a></li>`)}</ul>` : null}
    ${side.verdict ? html`<p class="sentence"><${Verdict} word=${side.verdict} /> ${side.sentence}</p>` : null}
    <p><a href=${buildAddress("run", side.run)}>${side.verdict ? "The whole run" : "This run"}</a></p>
  </section>`;
}

function describeLosses(side, isHit) {
  if (side.lost) return html`<b class="lost">${formatCount(side.lost)}</b> acknowledged messages are lost`;
  if (!isHit) return html`<b>0</b> lost`;
  return side.verdict || side.is_sent ? html`<b class="kept">0</b> lost` : html`<b>0</b> lost so far`;
}

// Leader and followers, and whether anything passes between them. Broker numbers do not matter here.
function DemoBrokers({ step }) {
  const isCut = ["cut", "killing"].includes(step);
  const isDead = ["killed", "over"].includes(step);
  const label = isDead ? "The leader is dead; a follower leads" : isCut ? "The leader is cut off from both followers" : "The leader and two followers";
  const box = (x, text, kind) => html`<rect class=${`broker ${kind}`} x=${x} y="6" width="92" height="34" rx="6" /><text x=${x + 46} y="28" text-anchor="middle">${text}</text>`;
  const link = (x, isBroken) => html`<line class=${isBroken ? "link broken" : "link"} x1=${x} x2=${x + 40} y1="23" y2="23" />${isBroken ? html`<path class="scissors" d="M ${x + 14} 15 l 12 16 m 0 -16 l -12 16" />` : null}`;
  return html`<svg class="brokers" viewBox="0 0 360 46" role="img" aria-label=${label}>
    ${link(93, isCut || isDead)}${link(225, false)}
    ${box(1, isDead ? "dead" : "leader", isDead ? "dead" : "leads")}
    ${box(133, isDead ? "new leader" : "follower", isDead ? "leads" : "")}
    ${box(265, "follower", "")}
    ${isCut ? html`<path class="arc broken" d="M 47 6 c 40 -12 220 -12 264 0" />` : null}
  </svg>`;
}

function Step({ step }) {
  const counts = step.sent ? `${plural(step.sent, "message")} sent, ${formatCount(step.received)} received` : "";
  return html`<li><h3>${step.title}</h3>
    ${step.verdict ? html`<p class="sentence"><${Verdict} word=${step.verdict} /> ${step.sentence} <a href=${buildAddress("run", step.run)}>The whole run</a></p>` : html`<p class="quiet">${step.doing || "comes next"}${counts ? `: ${counts}` : ""}</p>`}</li>`;
}

// runs.js
// A list of runs with their verdicts, in which a sweep is one entry: filter it, compare two.


const VERDICTS = ["proven", "violated", "inconclusive", "none"];

// What a filter looks at.
function textOf(entry) {
  return (entry.kind === "sweep" ? `${entry.name} ${describeSweep(entry)}` : `${entry.name} ${entry.sentence || ""}`).toLowerCase();
}

function isOfVerdict(entry, verdict) {
  if (!verdict) return true;
  return entry.kind === "sweep" ? Boolean(entry.verdicts[verdict]) : (entry.verdict || "none") === verdict;
}

// One sentence on a sweep: what it varies, how far it came.
function describeSweep(sweep) {
  const varied = Object.entries(sweep.parameters).map(([name, values]) => `${name} ${values.join(", ")}`).join(" × ");
  if (!sweep.planned) return `What it varies is not known; ${plural(sweep.done, "run")} ${sweep.done === 1 ? "is" : "are"} judged.`;
  const done = sweep.done >= sweep.planned ? `all ${plural(sweep.planned, "run")} are judged` : `${formatCount(sweep.done)} of ${plural(sweep.planned, "run")} are judged`;
  return `${varied}; ${done}.`;
}

function Verdicts({ list, address, onMore }) {
  const { text = "", a, b } = address.query;
  const { value: verdict, notes } = chooseOne(address.query.verdict, VERDICTS, { what: "verdict", fallback: "all are shown" });
  const chosen = [a, b].filter(Boolean);
  const set = (changes) => replaceQuery(address, changes);
  const choose = (name) => {
    const next = chosen.includes(name) ? chosen.filter((each) => each !== name) : [...chosen.slice(-1), name];
    set({ a: next[0], b: next[1] });
  };
  const shown = list.runs.filter((run) => isOfVerdict(run, verdict) && textOf(run).includes(text.toLowerCase()));
  return html`<${Notes} notes=${notes} /><div class="filter">
      <label>Filter <input type="search" value=${text} placeholder="name or sentence" onInput=${(event) => set({ text: event.target.value })} /></label>
      <label>Verdict <select value=${verdict} onChange=${(event) => set({ verdict: event.target.value })}>
        <option value="">all</option>${VERDICTS.map((word) => html`<option value=${word} selected=${word === verdict}>${word === "none" ? "not judged" : word}</option>`)}
      </select></label>
      ${chosen.length === 2 ? html`<a class="button" href=${buildAddress("compare", "", { a, b })}>Compare the two</a>` : html`<span class="quiet">Tick two runs to compare them.</span>`}
    </div>
    <ol class="runs">${shown.map((run) => run.kind === "sweep" ? html`<${SweepRow} key=${run.name} sweep=${run} />` : html`<${RunRow} key=${run.name} run=${run} isChosen=${chosen.includes(run.name)} onChoose=${() => choose(run.name)} />`)}</ol>
    ${shown.length ? null : html`<p class="quiet">No run matches.</p>`}
    ${list.total > list.runs.length ? html`<button type="button" onClick=${onMore}>Show more of ${plural(list.total, "run")}</button>` : null}`;
}

function RunRow({ run, isChosen, onChoose }) {
  const numbers = run.numbers;
  const ageS = Date.now() / 1000 - run.started_us / 1e6;
  return html`<li class="run">
    <div class="head">
      <${Verdict} word=${run.verdict} />
      <h3><a href=${buildAddress("run", run.name)}>${run.run}</a></h3>
      <span class="quiet" title=${formatTime(run.started_us)}>${run.state}${run.started_us ? `, ${formatAge(ageS)} ago` : ""}</span>
      <label class="choose"><input type="checkbox" checked=${isChosen} onChange=${onChoose} aria-label=${`compare ${run.run}`} /> compare</label>
    </div>
    <p class="sentence">${run.sentence || "Not judged yet."}</p>
    ${numbers ? html`<div class="numbers">
      <${FlowBar} flow=${numbers.flow} />
      <dl>${[["lost", numbers.lost], ["duplicated", numbers.duplicated], ["reordered", numbers.reordered]].map(([name, value]) => html`<div class=${value ? "bad" : ""}><dt>${name}</dt><dd>${formatCount(value)}</dd></div>`)}
        <div><dt>p99</dt><dd>${formatUs(numbers.p99_us)}</dd></div>
        ${run.thresholds ? html`<div class=${run.missed.length ? "bad" : ""}><dt>thresholds</dt><dd>${run.missed.length ? `${run.missed.length} of ${run.thresholds} missed` : `${run.thresholds} met`}</dd></div>` : null}
      </dl></div>` : null}
  </li>`;
}

function SweepRow({ sweep }) {
  return html`<li class="run">
    <div class="head">
      ${Object.entries(sweep.verdicts).map(([word, count]) => html`<span>${formatCount(count)} <${Verdict} word=${word === "none" ? null : word} /></span>`)}
      <h3><a href=${buildAddress("sweep", sweep.name)}><span class="kind">sweep</span> ${sweep.name}</a></h3>
      <span class="quiet" title=${formatTime(sweep.started_us)}>${sweep.state}${sweep.started_us ? `, ${formatAge(Date.now() / 1000 - sweep.started_us / 1e6)} ago` : ""}</span>
    </div>
    <p class="sentence">${describeSweep(sweep)}</p>
  </li>`;
}

// home.js
// Home: what runs now, and the verdicts of all runs.


const PAGE_SIZE = 50;

function Home({ address }) {
  const now = useNow();
  const [list, setList] = useState(null);
  const [starts, setStarts] = useState(null);
  const [problem, setProblem] = useState("");
  const [count, setCount] = useState(PAGE_SIZE);
  // A run that begins or ends changes the list.
  const running = now.things.map((thing) => thing.id).join();
  useEffect(() => {
    getJson(`runs?count=${count}`).then(setList, (error) => setProblem(error.message));
    getJson("starts").then(setStarts, () => null);
  }, [running, count]);
  const isEmpty = list && !list.runs.length && !now.things.length;
  return html`<main>
    <h1>Shoal</h1>
    ${problem ? html`<${Problem} text=${problem} />` : null}
    ${isEmpty && now.isConnected === false ? html`<${Disconnected} />` : null}
    ${isEmpty ? html`<${Empty} starts=${starts} folder=${list.folder} level="h2" />` : html`
      <section aria-labelledby="now"><h2 id="now">Now</h2><${NowCards} state=${now} /></section>
      <section aria-labelledby="verdicts"><h2 id="verdicts">Verdicts</h2>
        ${!list ? html`<p class="quiet">Loading…</p>`
          : list.runs.length ? html`<${Verdicts} list=${list} address=${address} onMore=${() => setCount(count + PAGE_SIZE)} />`
            : html`<${Empty} starts=${starts} folder=${list.folder} level="h3" />`}
      </section>
      ${starts && starts.allow_actions ? html`<section class="acts" aria-labelledby="start"><h2 id="start">Start a run</h2><${StartForm} starts=${starts} /></section>` : null}`}
  </main>`;
}

// Without any run: three ways to begin.
function Empty({ starts, folder, level }) {
  const ways = [
    ["See it work", "What acks=1 loses when a leader dies; then a mirror that copies everything, and one that loses a message.", "shoal demo", null],
    ["Test a mirror", "Does a mirror lose, repeat, reorder or delay anything?", "shoal run mirror-correctness", "mirror-correctness"],
    ["Kill a broker", "A leader of the source dies under a mirror, and comes back.", "shoal run source-broker-killed", "source-broker-killed"],
  ];
  return html`<p>There are no runs in <code>${folder}</code> yet. Three ways to begin:</p>
    <ul class="cards">${ways.map(([title, text, command, preset]) => html`<li class="card">
      <${level}>${title}</${level}><p>${text}</p>
      <p><code>${command}</code></p>
      ${starts && starts.allow_actions && preset ? html`<${StartButton} body=${{ kind: "preset", name: preset, settings: {} }} label=${`Start ${preset}`} />` : html`<${CopyButton} text=${command} />`}
    </li>`)}</ul>
    ${starts && !starts.allow_actions ? html`<p class="quiet">With <code>shoal serve --allow-actions</code> this page can start runs.</p>` : null}`;
}

function CopyButton({ text }) {
  const [label, setLabel] = useState("Copy the command");
  const copy = () => navigator.clipboard.writeText(text).then(() => setLabel("Copied"), () => setLabel("Copy it by hand"));
  return html`<button type="button" onClick=${copy}>${label}</button>`;
}

function StartButton({ body, label }) {
  const [state, setState] = useState("");
  const start = () => postJson("starts", body).then(() => setState("Started; it appears under Now."), (error) => setState(error.message));
  return html`<span class="acts"><button type="button" onClick=${start}>${label}</button> <span role="status">${state}</span></span>`;
}

function StartForm({ starts }) {
  const [chosen, setChosen] = useState(0);
  const [values, setValues] = useState({});
  const experiment = starts.experiments[chosen];
  const settings = Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ""));
  return html`<div class="start">
    <label>Experiment <select value=${chosen} onChange=${(event) => setChosen(Number(event.target.value))}>
      ${starts.experiments.map((each, place) => html`<option value=${place}>${each.name}${each.kind === "file" ? " (file)" : ""}</option>`)}
    </select></label>
    <p class="quiet">${experiment.description}</p>
    <div class="settings">${starts.settings.map((setting) => html`<label>${setting.label}
      ${setting.choices.length
        ? html`<select onChange=${(event) => setValues({ ...values, [setting.key]: event.target.value })}><option value="">as in the file</option>${setting.choices.map((choice) => html`<option>${choice}</option>`)}</select>`
        : html`<input type="number" min=${setting.least} max=${setting.most} placeholder="as in the file" onInput=${(event) => setValues({ ...values, [setting.key]: event.target.value })} />`}
    </label>`)}</div>
    <p><${StartButton} body=${{ kind: experiment.kind, name: experiment.name, settings }} label=${`Start ${experiment.name}`} />
      ${starts.is_running ? html` <${StopButton} />` : null}</p>
    ${starts.error ? html`<pre class="problem">${starts.error}</pre>` : null}
  </div>`;
}

function StopButton() {
  const [state, setState] = useState("");
  const stop = () => postJson("starts/stop", {}).then(() => setState("It drains and is judged."), (error) => setState(error.message));
  return html`<button type="button" onClick=${stop}>Stop the run</button> <span role="status">${state}</span>`;
}

// lifemodel.js
// The picture of one message's life: lanes, events, edges between them, and their places. Pure.
// Times are microseconds since the Unix epoch.

const PAD = 0.05;
const MOST_WIDER = 0.6;

// From top to bottom: {id, name, note}. A lane whose brokers were not recorded has no note.
function lifeLanes(life) {
  const groups = [...new Set(life.polls.map((poll) => poll.group))];
  const { source, target } = life.replicas || {};
  const followers = followersOf(source);
  const hasTarget = life.target.length > 0 || life.has_target;
  return [
    { id: "producer", name: "producer", note: life.producer },
    { id: "source", name: "source leader", note: source ? `broker ${source.leader}` : "" },
    ...(followers.length ? [{ id: "followers", name: "followers", note: `in sync: ${followers.join(", ")}` }] : []),
    ...(hasTarget ? [{ id: "mirror", name: "mirror", note: "" }, { id: "target", name: "target leader", note: target ? `broker ${target.leader}` : "" }] : []),
    ...(groups.length ? groups.map((group) => ({ id: `group ${group}`, name: "consumer", note: `group ${group}` })) : [{ id: "consumers", name: "consumer", note: "" }]),
  ];
}

// Who was in sync beside the leader when the message was sent.
function followersOf(replicas) {
  return replicas ? replicas.in_sync.filter((broker) => broker !== replicas.leader) : [];
}

// What is recorded, in order: {id, lane, what, label, t, from}; t is null where no time was recorded,
// `from` is the event before it on the way of the message.
function lifeEvents(life) {
  const followers = followersOf((life.replicas || {}).source);
  // With acks=all the leader answers when all replicas in sync have the message.
  const isReplicated = followers.length > 0 && life.acks === -1 && life.acknowledged_us !== null;
  const sent = life.sent_us === null ? "due" : "sent";
  const inLog = (cluster, from) => life[cluster].map((place, at) => ({ id: `${cluster} ${at}`, lane: cluster, what: `partition ${place.partition}, offset ${place.offset}`, label: `offset ${place.offset}`, t: place.append_us, from, isKept: true }));
  const wasInSource = life.source.length ? "source 0" : sent;
  const read = life.target.length ? "target" : "source";
  const logOf = (poll) => {
    const at = life[read].findIndex((place) => place.partition === poll.partition && place.offset === poll.offset);
    return life[read].length ? `${read} ${Math.max(0, at)}` : sent;
  };
  const events = [
    { id: "due", lane: "producer", what: "due", label: "due", t: life.intended_us, from: null },
    { id: "sent", lane: "producer", what: "sent", label: "sent", t: life.sent_us, from: "due" },
    ...inLog("source", sent),
    ...(isReplicated ? [{ id: "followers", lane: "followers", what: `in-sync followers ${followers.join(", ")} have it (acks=all)`, label: "replicated", t: null, from: wasInSource, isKept: true }] : []),
    { id: "acknowledged", lane: "producer", what: `acknowledged (${life.outcome})`, label: "acknowledged", t: life.acknowledged_us, from: isReplicated ? "followers" : wasInSource },
    ...(life.target.length ? [{ id: "mirror", lane: "mirror", what: "copied", label: "copied", t: null, from: wasInSource, isKept: true }] : []),
    ...inLog("target", "mirror"),
    ...life.polls.map((poll, at) => ({ id: `poll ${at}`, lane: `group ${poll.group}`, what: `received from partition ${poll.partition}, offset ${poll.offset}`, label: "received", t: poll.received_us, from: logOf(poll) })),
  ];
  return events.filter((event) => event.isKept || event.t !== null);
}

// The first lane that the message did not reach, and the last one that it did; null if it arrived.
function findLastSeen(life) {
  if (life.polls.length || life.last_stage === "unknown") return null;
  const hasTarget = life.target.length > 0 || life.has_target;
  if (life.last_stage === "target") return { after: "target", lane: "consumers" };
  if (life.last_stage === "source") return { after: "source", lane: hasTarget ? "mirror" : "consumers" };
  return { after: "producer", lane: "source" };
}

// The times that the picture shows: those of the message, and those of its neighbours as far as they
// do not make it small. If it did not arrive, they show when it should have, and all are shown.
function lifeRange(life) {
  const own = numbersOf(lifeEvents(life).map((event) => event.t));
  const others = numbersOf(life.neighbours.flatMap((each) => [each.intended_us, each.received_us]));
  if (!own.length && !others.length) return [0, 1];
  const [first, last] = own.length ? [Math.min(...own), Math.max(...own)] : [Math.min(...others), Math.max(...others)];
  const most = life.polls.length ? (last - first) * MOST_WIDER : Infinity;
  const low = Math.max(Math.min(first, ...others), first - most);
  const high = Math.min(Math.max(last, ...others), last + most);
  const pad = Math.max(1, (high - low) * PAD);
  return [low - pad, high + pad];
}

function numbersOf(times) {
  return times.filter((t) => typeof t === "number");
}

// Events with `x` between `left` and `right`; what has no time is put between its neighbours.
function placeEvents(events, range, left, right) {
  const x = (t) => left + ((right - left) * (t - range[0])) / (range[1] - range[0]);
  const placed = events.map((event) => ({ ...event, x: event.t === null ? null : x(event.t) }));
  placed.forEach((event, place) => {
    if (event.x !== null) return;
    const before = placed.slice(0, place).reverse().find((each) => each.x !== null);
    const after = placed.slice(place + 1).find((each) => each.t !== null);
    const from = before ? before.x : left;
    event.x = Math.min(right, after && after.x > from ? (from + after.x) / 2 : from + 40);
  });
  return placed;
}

// Where the labels of events stand: above or below their lane, or beside the last event of it; those
// without room have none.
function placeLabels(placed, width) {
  const free = new Map();
  return [...placed].sort((a, b) => a.x - b.x).flatMap((event) => {
    const side = ["above", "below"].find((each) => (free.get(`${event.lane} ${each}`) ?? -Infinity) <= event.x);
    if (!side) {
      const end = event.x + 12 + event.label.length * 7;
      const isLast = placed.every((other) => other === event || other.lane !== event.lane || other.x <= event.x);
      return isLast && end <= width ? [{ ...event, side: "beside", isLeft: false }] : [];
    }
    const isLeft = event.x + event.label.length * 7 > width;
    free.set(`${event.lane} ${side}`, isLeft ? Infinity : event.x + event.label.length * 7 + 6);
    return [{ ...event, side, isLeft }];
  });
}

// Faults that were active, cut to the range: {text, from, to}.
function faultBands(life, range) {
  return life.faults.map((fault) => ({
    text: [fault.name, fault.target].filter(Boolean).join(" "),
    from: Math.max(range[0], fault.began_us),
    to: Math.min(range[1], fault.ended_us ?? range[1]),
  })).filter((band) => band.to > band.from);
}

// The ways of the messages before and after it: {sequence, from, to, lane}; `to` is null where one
// was not received, and `lane` the last that it reached.
function neighbourWays(life, lanes) {
  const known = new Set(lanes.map((lane) => lane.id));
  const last = lanes[lanes.length - 1].id;
  return life.neighbours.filter((each) => each.intended_us !== null).map((each) => {
    const lane = each.last_stage === "received" ? last : known.has(each.last_stage) ? each.last_stage : "producer";
    return { sequence: each.sequence, from: each.intended_us, to: each.received_us, lane };
  });
}

// life.js
// The life of one message: swim lanes from the producer to the consumers. `lifemodel.js` has the rules.


// A phone gets a narrower picture, so that its text stays readable.
const [LIFE_WIDTH, LANE_HEIGHT, LABEL_WIDTH, TOP] = [innerWidth < 500 ? 470 : 900, 56, innerWidth < 500 ? 100 : 130, 44];

const LABEL_OFFSET = { above: -11, below: 20, beside: 4 };

function Life({ address }) {
  const [life, setLife] = useState(null);
  const [problem, setProblem] = useState("");
  const { topic, producer, lane, sequence } = address.query;
  const notes = checkMessage(address.query);
  useEffect(() => {
    setLife(null);
    setProblem("");
    if (notes.length) return;
    const query = new URLSearchParams({ topic, producer, lane, sequence });
    getJson(`runs/${encodeURIComponent(address.name)}/life?${query}`).then(setLife, (error) => setProblem(error.message));
  }, [topic, producer, lane, sequence]);
  return html`<main>
    <p><a href="#/">All runs</a> › <a href=${buildAddress("run", address.name)}>${address.name}</a></p>
    <h1>${notes.length ? "A message" : `Message ${sequence} of lane ${lane}`}</h1>
    ${notes.length ? html`<${Notes} notes=${[`${notes.join(" ")} Follow a message from the findings of a run.`]} />` : html`<p class="quiet">topic ${topic}, producer ${producer}</p>`}
    ${problem ? html`<${Problem} text=${problem} />` : null}
    ${!life && !problem && !notes.length ? html`<p class="quiet" role="status">Reading the ledgers…</p>` : null}
    ${life ? html`<p class="sentence big">${formatLinks(life.sentence)}</p><${SwimLanes} life=${life} /><${LifeTable} life=${life} /><${Neighbours} life=${life} address=${address} />` : null}
  </main>`;
}

function SwimLanes({ life }) {
  const lanes = lifeLanes(life);
  const range = lifeRange(life);
  const [left, right] = [LABEL_WIDTH + 12, LIFE_WIDTH - 20];
  const placed = placeEvents(lifeEvents(life), range, left, right);
  const x = (t) => left + ((right - left) * (t - range[0])) / (range[1] - range[0]);
  const y = (id) => TOP + LANE_HEIGHT * Math.max(0, lanes.findIndex((lane) => lane.id === id));
  const lost = findLastSeen(life);
  const last = lost && placed.filter((event) => event.lane === lost.after).pop();
  const height = TOP + LANE_HEIGHT * lanes.length - 16;
  const byId = new Map(placed.map((event) => [event.id, event]));
  const label = `${life.sentence} ${lost ? `Not seen after: ${laneName(lanes, lost.after)}.` : ""}`;
  return html`<figure class="life"><svg viewBox="0 0 ${LIFE_WIDTH} ${height}" role="img" aria-label=${label}>
    <clipPath id="life-plot"><rect x=${left - 8} y="0" width=${right - left + 16} height=${height} /></clipPath>
    ${faultBands(life, range).map((band, place) => html`<rect class="fault" x=${x(band.from)} y="0" width=${Math.max(2, x(band.to) - x(band.from))} height=${height} /><text class="small" x=${Math.min(x(band.from) + 4, right - 90)} y=${13 + 13 * place}>${formatLinks(band.text)}</text>`)}
    ${lanes.map((lane) => html`<line class="grid" x1=${left - 8} x2=${right + 8} y1=${y(lane.id)} y2=${y(lane.id)} /><text x="0" y=${y(lane.id) + (lane.note ? -2 : 4)}>${lane.name}</text><text class="small" x="0" y=${y(lane.id) + 13}>${shortenNote(lane.note)}</text>`)}
    <g clip-path="url(#life-plot)">${neighbourWays(life, lanes).map((way) => html`<${NeighbourWay} way=${way} x=${x} y=${y} />`)}</g>
    ${placed.filter((event) => byId.has(event.from)).map((event) => html`<line class="path" x1=${byId.get(event.from).x} y1=${y(byId.get(event.from).lane)} x2=${event.x} y2=${y(event.lane)} />`)}
    ${last ? html`<line class="missing" x1=${last.x} y1=${y(last.lane)} x2=${ringPlace(last, left, right)} y2=${y(lost.lane)} />` : null}
    ${placed.map((event) => html`<circle class=${event.t === null ? "event undated" : "event"} cx=${event.x} cy=${y(event.lane)} r="6"><title>${describeEvent(event)}</title></circle>`)}
    ${placeLabels(placed, LIFE_WIDTH - 10).map((event) => html`<text class="small" x=${event.x + (event.side === "beside" ? 11 : event.isLeft ? 4 : -4)} y=${y(event.lane) + LABEL_OFFSET[event.side]} text-anchor=${event.isLeft ? "end" : "start"}>${event.label}</text>`)}
    ${lost ? html`<circle class="unseen" cx=${ringPlace(last, left, right)} cy=${y(lost.lane)} r="9" /><${RingLabel} x=${ringPlace(last, left, right)} y=${y(lost.lane)} right=${right} />` : null}
  </svg><figcaption>Filled: recorded, at its time. Dashed: recorded without a time, placed in order. Hollow ring: not seen after this. Faint: messages before and after it in its lane.${life.faults.length ? " Behind: the fault that was active." : ""}</figcaption></figure>`;
}

function RingLabel({ x, y, right }) {
  const isLeft = x > right - 140;
  return html`<text class="small lost" x=${x + (isLeft ? -14 : 14)} y=${y + 4} text-anchor=${isLeft ? "end" : "start"}>not seen after this</text>`;
}

// A little after where it was seen last.
function ringPlace(last, left, right) {
  return Math.min(right - 4, (last ? last.x : left) + 60);
}

// A faint line from when a neighbour was due to when it was received; a ring where it stayed.
function NeighbourWay({ way, x, y }) {
  const title = html`<title>message ${way.sequence}</title>`;
  if (way.to !== null) return html`<line class="neighbour" x1=${x(way.from)} y1=${y("producer")} x2=${x(way.to)} y2=${y(way.lane)}>${title}</line>`;
  return html`<line class="neighbour" x1=${x(way.from)} y1=${y("producer")} x2=${x(way.from) + 24} y2=${y(way.lane)}>${title}</line><circle class="neighbour" cx=${x(way.from) + 24} cy=${y(way.lane)} r="4" />`;
}

function laneName(lanes, id) {
  return (lanes.find((lane) => lane.id === id) || lanes[0]).name;
}

function shortenNote(text) {
  const most = Math.floor(LABEL_WIDTH / 6.6);
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function describeEvent(event) {
  return `${event.lane}: ${event.what}${event.t === null ? ", time not recorded" : ` at ${formatClock(event.t)}`}`;
}

function LifeTable({ life }) {
  const start = life.intended_us ?? life.sent_us;
  const lanes = lifeLanes(life);
  const rows = lifeEvents(life).map((event) => [event.lane.startsWith("group ") ? event.lane : laneName(lanes, event.lane), event.what, event.t === null ? "not recorded" : formatClock(event.t), event.t === null || start === null ? "–" : formatUs(event.t - start)]);
  const faults = life.faults.map((fault) => [fault.name, formatLinks(fault.target), fault.began_us ? formatClock(fault.began_us) : "–"].filter(Boolean).join(" "));
  return html`<${DataTable} caption="events of this message" columns=${["where", "what", "time (UTC)", "after it was due"]} rows=${rows} />
    ${faults.length ? html`<p>Faults at that time: ${faults.join("; ")}.</p>` : null}`;
}

function Neighbours({ life, address }) {
  if (!life.neighbours.length) return null;
  const link = (sequence) => buildAddress("life", address.name, { ...address.query, sequence });
  return html`<section aria-labelledby="neighbours"><h2 id="neighbours">Messages before and after it in this lane</h2>
    <div class="scroll" tabindex="0" role="region" aria-label="table: neighbours"><table>
      <thead><tr><th scope="col">sequence</th><th scope="col">came to</th><th scope="col">due</th><th scope="col">received</th></tr></thead>
      <tbody>${life.neighbours.map((each) => html`<tr><td><a href=${link(each.sequence)}>${formatCount(each.sequence)}</a></td><td>${each.last_stage}</td><td>${each.intended_us ? formatClock(each.intended_us) : "–"}</td><td>${each.received_us ? formatClock(each.received_us) : "–"}</td></tr>`)}</tbody>
    </table></div></section>`;
}

// sides.js
// The records of source and target at the first difference, side by side.


function SidesView({ id, row, onClose }) {
  const [sides, setSides] = useState(null);
  const [problem, setProblem] = useState("");
  const difference = row && row.difference;
  const key = difference ? `${row.partition} ${difference.source_offset} ${difference.target_offset}` : "";
  useEffect(() => {
    setSides(null);
    setProblem("");
    if (!difference) return;
    const query = new URLSearchParams({ thing: id, source: row.partition, target: row.target, source_offset: difference.source_offset, target_offset: difference.target_offset });
    getJson(`sides?${query}`).then(setSides, (error) => setProblem(error.message));
  }, [key]);
  return html`<section class="sides-view" aria-labelledby="sides"><h2 id="sides">Where it differs</h2>
    <p><button type="button" onClick=${onClose}>Close</button></p>
    ${row ? null : html`<p>The address names a partition that this mirror does not copy.</p>`}
    ${row && !difference ? html`<p>${row.partition} does not differ any more.</p>` : null}
    ${difference ? html`<p class="sentence big">${row.partition}: ${difference.what}.</p>` : null}
    ${problem ? html`<${Problem} text=${problem} />` : null}
    ${difference && !sides && !problem ? html`<p class="quiet" role="status">Reading both records…</p>` : null}
    ${sides && difference ? html`<${BothRecords} sides=${sides} row=${row} />` : null}
  </section>`;
}

function BothRecords({ sides, row }) {
  const { source_offset: source, target_offset: target } = row.difference;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="both records"><table class="sides">
      <thead><tr><th scope="col">field</th><th scope="col">source ${row.partition}${source < 0 ? "" : `, offset ${formatCount(source)}`}</th><th scope="col">target ${row.target}${target < 0 ? "" : `, offset ${formatCount(target)}`}</th></tr></thead>
      <tbody>${sides.fields.map((field) => html`<tr class=${field.is_equal ? "" : "changed"}><th scope="row">${field.field}</th>
        <${Value} parts=${field.source} size=${field.sizes[0]} first=${field.first} isEqual=${field.is_equal} />
        <${Value} parts=${field.target} size=${field.sizes[1]} first=${field.first} isEqual=${field.is_equal} /></tr>`)}</tbody>
    </table></div>
    <div class="around">${["source", "target"].map((side) => html`<div><h3>${side}: records around it</h3><ol class="records">${sides[side].map((record) => html`<li class=${record.offset === (side === "source" ? source : target) ? "here" : ""}><b>${formatCount(record.offset)}</b> ${record.key ? html`<code>${record.key.text}</code> ` : null}<span>${record.value ? record.value.text.slice(0, 120) : "no value"}</span></li>`)}</ol>${sides[side].length ? null : html`<p class="quiet">No record there.</p>`}</div>`)}</div>`;
}

// A value with the part that differs marked; what is equal is not marked.
function Value({ parts, size, first, isEqual }) {
  if (!parts) return html`<td class="quiet">no value</td>`;
  const [before, different, after] = parts;
  const shown = parts.join("").length;
  return html`<td><code class="value">${first ? "…" : ""}${before}${isEqual ? different : different ? html`<mark>${different}</mark>` : html`<mark class="nothing" title="nothing here">∅</mark>`}${after}</code>${size > shown && size > 1000 ? html`<br /><span class="quiet">${formatCount(size)} bytes</span>` : null}</td>`;
}

// mirror.js
// One mirror: how far each partition is proven equal and copied, lag, and records that differ.


const PROOF_EVERY_MS = 2000;
const STATE_RANKS = { parked: 0, waiting: 1, copying: 2 };

function Mirror({ address }) {
  const id = address.name.includes("/") ? `run:${address.name}` : `mirror:${address.name}`;
  const state = useThing(id);
  const proof = useProof(id);
  const mayAct = useActions();
  const set = (changes) => replaceQuery(address, changes);
  if (!state.thing) return html`<main><${WayBack} name=${address.name} /><h1>${address.name}</h1>${state.problem ? html`<${Problem} text=${state.problem} />` : html`<p class="quiet">Loading…</p>`}</main>`;
  const rows = mergeProof(state.partitions, proof);
  const { details } = state.thing;
  const tick = state.log.ticks[state.log.ticks.length - 1];
  const isPaused = Boolean(tick && tick.gauges.paused);
  return html`<main>
    <${WayBack} name=${address.name} />
    <h1><span class="kind">mirror</span> ${state.thing.name}</h1>
    <p class="quiet">${details.source} → ${details.target}${details.delivery ? `, delivery ${details.delivery}` : ""}</p>
    <p class="sentence big">${describeThing(state.thing, state.log)}</p>
    <${DataAge} state=${state} />
    ${mayAct && state.isAlive ? html`<p class="actions">${isPaused
      ? html`<${ActionButton} body=${{ thing: id, action: "resume" }} label="Resume" title="resume this mirror" />`
      : html`<${ActionButton} body=${{ thing: id, action: "pause" }} label="Pause" title="pause this mirror" />`}</p>` : null}
    <${ProofLine} proof=${proof} rows=${rows} />
    ${address.query.differs ? html`<${SidesView} id=${id} row=${rows.find((row) => row.partition === address.query.differs)} onClose=${() => set({ differs: "" })} />` : null}
    <${PartitionBars} rows=${rows} query=${address.query} set=${set} />
    <${TopicTable} rows=${rows} />
    <${LagTracks} ticks=${sortByTime(state.log.ticks)} query=${address.query} set=${set} />
    <${Remarks} logs=${state.log.logs} />
  </main>`;
}

// proof.json, which a continuous verification replaces every second or so.
function useProof(id) {
  const [proof, setProof] = useState(null);
  useEffect(() => {
    let timer = null;
    const ask = async () => {
      if (!document.hidden) await getJson(`proof?thing=${encodeURIComponent(id)}`).then(setProof, () => null);
      timer = setTimeout(ask, PROOF_EVERY_MS);
    };
    ask();
    return () => clearTimeout(timer);
  }, [id]);
  return proof;
}

// One row for each partition that the mirror or the proof names, the worst first. Pure.
function mergeProof(partitions, proof) {
  const rows = new Map(Object.values(partitions).map((entry) => [entry.partition, { ...entry, proven: null, difference: null, unavailable: "", provenUs: null }]));
  for (const each of (proof && proof.partitions) || []) {
    const known = rows.get(each.source) || { partition: each.source, target: each.target, state: "", reason: "", position: -1, end: each.source_end, lag: null, lag_s: null };
    rows.set(each.source, { ...known, end: Math.max(known.end, each.source_end), proven: each.proven_offset, difference: each.difference, unavailable: each.unavailable, provenUs: each.at_us });
  }
  const rank = (row) => (row.difference ? -1 : STATE_RANKS[row.state] ?? 3);
  return [...rows.values()].sort((a, b) => rank(a) - rank(b) || (b.lag || 0) - (a.lag || 0) || compareNames(a.partition, b.partition));
}

function ProofLine({ proof, rows }) {
  if (!proof) return html`<p class="quiet">Not verified continuously: <code>shoal mirror verify --follow</code> proves partitions equal while they are copied.</p>`;
  const differing = rows.filter((row) => row.difference).length;
  const ageS = Math.max(0, Date.now() / 1000 - proof.at_us / 1e6);
  return differing
    ? html`<p class="problem" role="alert">${plural(differing, "partition")} ${differing === 1 ? "differs" : "differ"} from the source. Choose a red mark to see both records.</p>`
    : html`<p>Proven equal as far as the green bars reach; the proof is ${formatAge(ageS)} old.</p>`;
}

function PartitionBars({ rows, query, set }) {
  const [count, setCount] = useState(PAGE_ROWS);
  const text = (query.filter || "").toLowerCase();
  const shown = rows.filter((row) => `${row.partition} ${row.state}`.toLowerCase().includes(text));
  return html`<section aria-labelledby="partitions"><h2 id="partitions">Partitions</h2>
    ${rows.length ? null : html`<p class="quiet">No partition has been copied yet.</p>`}
    ${rows.length > 8 ? html`<p class="filter"><label>Filter <input type="search" value=${query.filter || ""} placeholder="topic or state" onInput=${(event) => set({ filter: event.target.value })} /></label></p>` : null}
    ${rows.length ? html`<p class="key"><span class="proven">proven equal</span><span class="copied">copied</span><span class="behind">lag</span><span class="differs">differs</span></p>` : null}
    <ul class="bars">${shown.slice(0, count).map((row) => html`<${PartitionBar} key=${row.partition} row=${row} onDiffers=${() => set({ differs: row.partition })} />`)}</ul>
    ${shown.length > count ? html`<button type="button" onClick=${() => setCount(count + PAGE_ROWS)}>Show more of ${plural(shown.length, "partition")}</button>` : null}
  </section>`;
}

// A bar from offset 0 to the end of the source: proven, copied, lag.
function PartitionBar({ row, onDiffers }) {
  const end = Math.max(1, row.end, row.position, row.proven || 0);
  const x = (offset) => (1000 * Math.max(0, Math.min(offset, end))) / end;
  const [proven, copied] = [x(row.proven === null ? 0 : row.proven), x(row.position)];
  const lag = row.lag > 0 ? Math.max(6, 1000 - copied) : 0;
  const text = describeRow(row);
  // Where one side has no record the difference is behind what is proven.
  const differs = row.difference && (row.difference.source_offset >= 0 ? row.difference.source_offset : Math.max(0, row.proven));
  return html`<li class="bar">
    <span class="name">${row.partition}${row.target && row.target !== row.partition ? html` <span class="quiet">→ ${row.target}</span>` : null}</span>
    <svg viewBox="0 0 1000 12" preserveAspectRatio="none" role="img" aria-label=${`${row.partition}: ${text}`}>
      <rect class="copied" width=${copied} height="12" />
      <rect class="proven" width=${Math.min(proven, row.difference ? x(differs) : 1000)} height="12" />
      ${lag ? html`<rect class="behind" x=${1000 - lag} width=${lag} height="12" />` : null}
      ${row.difference ? html`<rect class="differs" x=${Math.max(0, Math.min(992, x(differs) - 4))} width="8" height="12" />` : null}
    </svg>
    <span class="text">${text}
      ${row.difference ? html` <button type="button" class="danger" onClick=${onDiffers}>differs at offset ${formatCount(differs)}: show both</button>` : null}
      ${row.state === "parked" || row.state === "waiting" ? html` <b class=${row.state}>${row.state}</b> ${row.reason}` : null}</span>
  </li>`;
}

function describeRow(row) {
  return [
    row.position < 0 ? (row.state ? "not started" : "") : `copied up to ${formatCount(row.position)} of ${formatCount(row.end)}`,
    row.lag > 0 ? `${plural(row.lag, "record")} behind${row.lag_s > 0 ? `, ${formatUs(row.lag_s * 1e6)}` : ""}` : "",
    row.proven === null || row.proven < 0 ? "" : `proven up to ${formatCount(row.proven)}`,
    row.unavailable ? `not verified: ${row.unavailable}` : "",
  ].filter(Boolean).join("; ");
}

function TopicTable({ rows }) {
  const topics = new Map();
  for (const row of rows) {
    const topic = row.partition.replace(/-\d+$/, "");
    if (!topics.has(topic)) topics.set(topic, []);
    topics.get(topic).push(row);
  }
  const cells = [...topics].map(([topic, own]) => {
    const count = (state) => own.filter((row) => row.state === state).length;
    const states = ["copying", "waiting", "parked"].filter(count).map((state) => `${formatCount(count(state))} ${state}`);
    const differing = own.filter((row) => row.difference).length;
    const reasons = [...new Set(own.map((row) => row.reason).filter(Boolean))].slice(0, 3);
    const lags = own.map((row) => row.lag).filter((lag) => lag !== null && lag >= 0);
    return [topic, formatCount(own.length), [...states, differing ? `${formatCount(differing)} differ` : ""].filter(Boolean).join(", ") || "–", formatCount(lags.reduce((sum, lag) => sum + lag, 0)), formatLag(Math.max(0, ...own.map((row) => row.lag_s || 0))), reasons.join("; ") || "–"];
  });
  if (!cells.length) return null;
  return html`<section aria-labelledby="topics"><h2 id="topics">Topics</h2><div class="scroll" tabindex="0" role="region" aria-label="table: topics"><table>
    <thead><tr>${["topic", "partitions", "states", "lag (records)", "lag (time)", "reasons"].map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${cells.map((row) => html`<tr>${row.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody></table></div></section>`;
}

function formatLag(seconds) {
  return seconds ? formatUs(seconds * 1e6) : "0 s";
}

function LagTracks({ ticks, query, set }) {
  if (ticks.length < 2) return html`<p class="quiet">Not enough ticks for charts yet.</p>`;
  const times = ticks.map((tick) => tick.t / 1e6);
  const whole = [times[0], Math.max(times[times.length - 1], times[0] + 1)];
  const chosen = chooseTime(query, whole[1] - whole[0]);
  const range = [whole[0] + (chosen.from ?? 0), chosen.to === null ? whole[1] : whole[0] + chosen.to];
  const zoom = (from, to) => set(from === undefined ? { from: "", to: "" } : { from: Math.max(0, from - whole[0]).toFixed(2), to: (to - whole[0]).toFixed(2) });
  const gauge = (name) => ticks.map((tick) => tick.gauges[name] ?? null);
  const [lagS, lag, copied] = [gauge("lag_s"), gauge("lag"), rates(ticks, "records")];
  const shared = { range, onZoom: zoom, spans: [] };
  const secondLabels = (u, splits) => splits.map((value) => (value === null ? "" : formatLag(value)));
  const rows = ticks.map((tick, place) => [formatClock(tick.t), lagS[place] === null ? "–" : formatLag(lagS[place]), formatCount(lag[place]), formatRate(copied[place])]);
  return html`<section aria-labelledby="lag"><h2 id="lag">Lag over time</h2>
    <${Notes} notes=${chosen.notes} />
    ${chosen.from !== null || chosen.to !== null ? html`<p><button type="button" onClick=${() => zoom()}>Show everything</button></p>` : null}
    <${Track} ...${shared} title="Lag in time: the age of the oldest record that is not copied" height=${130} series=${[{ label: "lag", color: "--c3", format: formatLag }]} columns=${[times, lagS]} yLabels=${secondLabels} />
    <${Track} ...${shared} title="Lag in records" height=${130} series=${[{ label: "lag", color: "--c0", format: formatCount }]} columns=${[times, lag]} />
    <${Track} ...${shared} title="Records copied per second" height=${150} series=${[{ label: "copied", color: "--c1", format: formatRate }]} columns=${[times, copied]} isLast=${true} />
    <${DataTable} caption="lag" columns=${["time (UTC)", "lag (time)", "lag (records)", "copied"]} rows=${rows.reverse()} /></section>`;
}

function Remarks({ logs }) {
  if (!logs.length) return null;
  return html`<section aria-labelledby="remarks"><h2 id="remarks">Remarks</h2>
    <ul class="remarks">${logs.slice(-20).reverse().map((each) => html`<li><span class="quiet">${formatClock(each.t)}</span> ${each.level === "info" ? "" : html`<b>${each.level}</b> `}${each.text}</li>`)}</ul></section>`;
}

function mirrorAddress(id) {
  return buildAddress("mirror", id.replace(/^(mirror|run):/, ""));
}

// judged.js
// Comparisons of several runs a side, and sweeps: what differs, by how much, and every run as a dot.


const DIFFERS = "differs";
const NOISE_UNKNOWN = "noise unknown";
const EQUAL = "equal";
const COULD = html`<i>Could have shown</i> is the smallest effect that these runs would show in 8 of 10 cases; for rare events, the smallest number of runs with such an event.`;

function ComparisonReport({ content }) {
  const { comparison, links } = content;
  const { columns, rows } = comparison;
  const verdicts = [...new Set(columns.flatMap((column) => column.verdicts))];
  const [differing, unknown] = [namesJudged(rows, DIFFERS), namesJudged(rows, NOISE_UNKNOWN)];
  const settings = settingsThatDiffer(columns);
  return html`<h1>${columns.length} side by side</h1>
    ${verdicts.length > 1 ? html`<p class="sentence big"><b>verdicts differ</b>: ${columns.map((column) => `${column.label} ${unique(column.verdicts).join(", ")}`).join("; ")}.</p>` : null}
    ${differing.length ? html`<p class="sentence big"><b>differs</b>: ${differing.join(", ")}.</p>` : null}
    ${unknown.length ? html`<p class="sentence big"><b>noise unknown</b>: ${unknown.join(", ")} differ, but there are too few runs to decide whether that is noise.</p>` : null}
    ${differing.length || unknown.length ? null : html`<p class="sentence big"><b>within noise</b>, or equal, in every metric.</p>`}
    <${FactTable} id="runs" title="The runs" columns=${["column", "verdict", "in words", "runs"]} rows=${columns.map((column) => [column.label, verdictsOf(column), column.sentence, runLinks(column.runs, links)])} />
    <${FactTable} id="metrics" title="Metric by metric" columns=${["metric", ...columns.map((column) => column.label), "difference", "could have shown"]}
      rows=${rows.map((row) => [row.measure.name, ...columns.map((column, place) => cellOf(row, place)), judgementOf(row.judged), row.judged.smallest || "–"])} />
    <p class="quiet">${content.how} ${COULD}</p>
    <section aria-labelledby="dots"><h2 id="dots">Every run</h2><p class="quiet">A dot for each run; a line for the mean if a column has several. Equal metrics are left out.</p>
      <${Panels} rows=${rows} levels=${columns.map((column) => column.label)} /></section>
    ${settings.length ? html`<${FactTable} id="settings" title="Settings that differ" columns=${["setting", ...columns.map((column) => column.label)]} rows=${settings} />` : null}`;
}

function SweepReport({ content }) {
  const { sweep, sentences, links } = content;
  const { columns, rows } = sweep.comparison;
  const shown = rows.filter((row) => row.judged.judgement !== EQUAL);
  const equal = namesJudged(rows, EQUAL);
  return html`<h1>Sweep of ${sweep.name}</h1>
    <p class="quiet">${sweep.done} of ${sweep.planned} runs, seed ${sweep.seed}.</p>
    ${sentences.map((sentence) => html`<p class="sentence big">${sentence}</p>`)}
    <p class="quiet">${content.how} ${COULD}</p>
    ${Object.entries(sweep.parameters).map(([parameter, levels], place) => html`<${Effect} id=${`effect${place}`} parameter=${parameter} levels=${levels} effects=${sweep.effects.filter((effect) => effect.parameter === parameter)} />`)}
    <${FactTable} id="combinations" title="Every combination" columns=${["combination", "verdicts", "runs", ...shown.map((row) => row.measure.name)]}
      rows=${columns.map((column, place) => [column.label, verdictsOf(column), runLinks(column.runs, links), ...shown.map((row) => cellOf(row, place))])} />
    <p class="quiet">The mean over the repeats of a combination and, if they differ, the least and the greatest value.${equal.length ? ` The same everywhere: ${equal.join(", ")}.` : ""}</p>`;
}

function Effect({ id, parameter, levels, effects }) {
  const cells = effects.map((effect) => [effect.measure.name, ...effect.values.map((values) => formatMeasure(effect.measure, meanOf(values))), describeJudgement(effect.judged), effect.judged.smallest || "–"]);
  return html`<section aria-labelledby=${id}><h2 id=${id}>The effect of ${parameter}</h2>
    <p class="quiet">A dot for each run, over all values of the other parameters; a line for the mean. Metrics that are judged equal are left out.</p>
    <${Panels} rows=${effects} levels=${levels} />
    <${DataTable} caption=${`the effect of ${parameter}`} columns=${["metric", ...levels, "effect", "could have shown"]} rows=${cells} /></section>`;
}

function unique(values) {
  return [...new Set(values)];
}

function verdictsOf(column) {
  return unique(column.verdicts).map((word) => html`<${Verdict} word=${word} /> `);
}

// Links to the reports of the runs, where they are known.
function runLinks(runs, links) {
  return runs.map((run) => html`<span class="run-link">${Object.hasOwn(links, run) ? html`<a href=${links[run]}>${run}</a>` : run} </span>`);
}

function namesJudged(rows, judgement) {
  return rows.filter((row) => row.judged.judgement === judgement).map((row) => row.measure.name);
}

function settingsThatDiffer(columns) {
  const names = unique(columns.flatMap((column) => Object.keys(column.settings)));
  const rows = names.map((name) => [name, ...columns.map((column) => column.settings[name] ?? "–")]);
  return rows.filter(([, ...values]) => new Set(values).size > 1);
}

// Pure: numbers of measures. A latency may be "never".

function meanOf(values) {
  if (!values.length) return null;
  return values.includes("never") ? "never" : values.reduce((sum, value) => sum + value, 0) / values.length;
}

function formatMeasure(measure, value) {
  if (value === null || value === "never") return value ?? "–";
  if (measure.unit === "us") return formatUs(value);
  if (measure.unit === "bytes") return formatBytes(value);
  if (measure.unit === "per_s") return `${value.toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 })}/s`;
  if (measure.unit === "s") return `${value.toFixed(2)} s`;
  if (measure.unit === "count") return Number.isInteger(value) ? formatCount(value) : value.toFixed(1);
  return formatRatio(value);
}

// The mean of a column's runs, and their range.
function cellOf(row, place) {
  const values = row.values[place];
  const mean = formatMeasure(row.measure, meanOf(values));
  const known = values.filter((value) => value !== "never");
  const [low, high] = [Math.min(...known), Math.max(...known)];
  if (values.length < 2 || !known.length || (low === high && known.length === values.length)) return mean;
  return `${mean} (${formatMeasure(row.measure, low)} … ${known.length < values.length ? "never" : formatMeasure(row.measure, high)})`;
}

function describeJudgement(judged) {
  if (judged.chance === null) return judged.judgement;
  return `${judged.judgement} (${judged.chance < 0.001 ? "p < 0.001" : `p = ${Number(judged.chance.toPrecision(2))}`})`;
}

function judgementOf(judged) {
  return judged.judgement === DIFFERS ? html`<b class="differs">${describeJudgement(judged)}</b>` : describeJudgement(judged);
}

// A small picture for each measure: every run is a dot over its level. Each has its own scale, which
// begins at zero unless that hides the differences.

const [PANEL_WIDTH, PANEL_HEIGHT, PANEL_LEFT, PANEL_BOTTOM] = [232, 128, 72, 22];

function Panels({ rows, levels }) {
  const shown = rows.filter((row) => row.judged.judgement !== EQUAL && row.values.some((values) => values.some((value) => value !== "never")));
  if (!shown.length) return html`<p>None differ.</p>`;
  return html`<ul class="panels">${shown.map((row) => html`<li class="panel"><h3>${row.measure.name}</h3><p class="quiet">${judgementOf(row.judged)}${neverNote(row.values)}</p><${Dots} row=${row} levels=${levels} /></li>`)}</ul>`;
}

function neverNote(values) {
  const count = values.flat().filter((value) => value === "never").length;
  return count ? `; never in ${count} run${count === 1 ? "" : "s"}` : "";
}

function Dots({ row, levels }) {
  const finite = row.values.map((values) => values.filter((value) => value !== "never"));
  const [low, high] = scaleOf(finite.flat());
  const [top, bottom, right] = [8, PANEL_HEIGHT - PANEL_BOTTOM, PANEL_WIDTH - 6];
  const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
  const step = (right - PANEL_LEFT) / levels.length;
  const half = Math.min(14, step * 0.35);
  const label = `${row.measure.name}: ${levels.map((level, place) => `${level} ${formatMeasure(row.measure, meanOf(row.values[place]))}`).join(", ")}`;
  const x = (place, count, at) => PANEL_LEFT + step * (place + 0.5) + (count === 1 ? 0 : (at / (count - 1) - 0.5) * half);
  return html`<svg viewBox="0 0 ${PANEL_WIDTH} ${PANEL_HEIGHT}" role="img" aria-label=${label}>
    ${[low, high].map((value) => html`<line class="grid" x1=${PANEL_LEFT} x2=${right} y1=${y(value)} y2=${y(value)} /><text x=${PANEL_LEFT - 6} y=${y(value) + 4} text-anchor="end">${formatMeasure(row.measure, Number(value.toPrecision(3)))}</text>`)}
    ${levels.map((level, place) => html`<text x=${x(place, 1, 0)} y=${bottom + 16} text-anchor="middle"><title>${level}</title>${shorten(level, Math.max(2, Math.min(14, Math.floor(step / 7.5))))}</text>
      ${finite[place].map((value, at) => html`<circle class="dot" cx=${x(place, finite[place].length, at)} cy=${y(value)} r="3.5" />`)}
      ${finite[place].length > 1 ? html`<line class="mean" x1=${x(place, 1, 0) - half} x2=${x(place, 1, 0) + half} y1=${y(meanOf(finite[place]))} y2=${y(meanOf(finite[place]))} />` : null}`)}
  </svg>`;
}

function shorten(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}

function scaleOf(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (low === high) return high > 0 ? [0, high] : [low, low + 1];
  return low >= 0 && low < 0.7 * high ? [0, high] : [low, high];
}

// flow.js
// The flow of messages from sent to received, and percentile curves: pictures in SVG.


const WIDTH = 1000;
const HEIGHT = 170;
const STAGE_NAMES = { sent: "sent", source: "source log", mirror: "mirror", target: "target log", received: "received" };

// `stages` are {stage, count, lost, copies}; a click on one filters what is below.
function FlowDiagram({ stages, chosen, onChoose, note }) {
  const most = Math.max(1, ...stages.map((stage) => stage.count));
  const step = WIDTH / stages.length;
  const size = (count) => (90 * count) / most;
  return html`<figure class="flow"><figcaption>Flow of messages${note}</figcaption>
    <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" aria-hidden="true">
      ${stages.slice(1).map((stage, place) => band(stages[place], stage, place, step, size))}
      ${stages.map((stage, place) => html`<rect class=${stage.stage === chosen ? "stage chosen" : "stage"} x=${place * step + 8} y=${(HEIGHT - 40 - size(stage.count)) / 2} width="14" height=${Math.max(2, size(stage.count))} />`)}
    </svg>
    <div class="stages">${stages.map((stage) => html`<button type="button" aria-pressed=${stage.stage === chosen} onClick=${() => onChoose(stage.stage === chosen ? "" : stage.stage)}>
      <span class="quiet">${STAGE_NAMES[stage.stage]}</span><b>${formatCount(stage.count)}</b>
      ${stage.lost ? html`<span class="lost">${formatCount(stage.lost)} lost before it</span>` : null}
      ${stage.copies ? html`<span class="copied">${formatCount(stage.copies)} duplicated</span>` : null}
    </button>`)}</div>
  </figure>`;
}

// A band as wide as what passes, a red stub that ends where messages are lost, a loop for copies.
function band(before, stage, place, step, size) {
  const [left, right, middle] = [place * step + 22, (place + 1) * step + 8, (HEIGHT - 40) / 2];
  const passed = Math.min(before.count, stage.count);
  const [a, b] = [size(before.count) / 2, size(passed) / 2];
  const lost = stage.lost ? Math.max(5, size(stage.lost)) : 0;
  return html`
    <polygon class="passed" points="${left},${middle - a} ${right},${middle - b} ${right},${middle + b} ${left},${middle + a}" />
    ${lost ? html`<polygon class="lost" points="${left},${middle + a} ${left},${middle + a - lost} ${(left + right) / 2},${HEIGHT - 14} ${(left + right) / 2 - 10},${HEIGHT - 4}" />` : null}
    ${stage.copies ? html`<path class="loop" d="M ${right + 6} ${middle - b} c -30 -40 40 -40 10 0" />` : null}`;
}

// Percentile curves: latency on a log scale over the percentile, which is stretched at its end.
function PercentileCurves({ curves }) {
  curves = curves.filter((curve) => curve.count);
  const values = curves.flatMap((curve) => curve.points.map(([, value]) => value).filter((value) => value > 0));
  if (!values.length) return null;
  const [low, high] = [Math.log(Math.min(...values) * 0.9), Math.log(Math.max(...values) * 1.1)];
  const stretch = (percent) => Math.min(5, -Math.log10(1 - Math.min(percent, 99.999) / 100));
  // A phone gets a narrower picture, so that its text stays readable.
  const width = innerWidth < 500 ? 400 : 700;
  const x = (percent) => 60 + ((width - 80) * stretch(percent)) / 5;
  const y = (value) => 230 - (210 * (Math.log(value) - low)) / (high - low || 1);
  const ticks = [50, 90, 99, 99.9, 99.99];
  const steps = [0, 1, 2, 3].map((part) => Math.exp(low + ((high - low) * part) / 3));
  // Curves rise, so names have room below on the right.
  return html`<svg class="curves" viewBox="0 0 ${width} 262" role="img" aria-label="Latency by percentile; the table below has the values">
    ${ticks.map((percent) => html`<line class="grid" x1=${x(percent)} x2=${x(percent)} y1="20" y2="230" /><text x=${x(percent)} y="248" text-anchor="middle">p${percent}</text>`)}
    ${steps.map((value) => html`<line class="grid" x1="60" x2=${width - 10} y1=${y(value)} y2=${y(value)} /><text x="54" y=${y(value) + 4} text-anchor="end">${formatUs(value)}</text>`)}
    ${curves.map((curve, place) => html`<polyline class=${`curve c${place % 4}`} points=${curve.points.filter(([, value]) => value > 0).map(([percent, value]) => `${x(percent).toFixed(1)},${y(value).toFixed(1)}`).join(" ")} />
      <text class=${`name c${place % 4}`} text-anchor="end" x=${width - 14} y=${222 - 16 * (curves.length - 1 - place)}>${curve.phase}: ${formatCount(curve.count)} messages${curve.never ? `, ${formatCount(curve.never)} never` : ""}</text>`)}
  </svg>`;
}

// displacement.js
// How far messages moved from their place, by lane.


const MOST_BARS = 20;

function Displacement({ group }) {
  const lanes = listMovedLanes(group.lanes);
  const { F: sum, K: pairs, delivered } = group.metrics;
  if (!sum) return null;
  const most = Math.max(1e-9, ...lanes.map((lane) => lane.mean ?? 0));
  const mean = (value) => (value === null ? "–" : Number(value.toPrecision(3)).toLocaleString("en-US"));
  const rows = () => lanes.map((lane) => [lane.name, formatCount(lane.reordered), formatCount(lane.sum), mean(lane.mean), formatCount(lane.pairs), lane.order === null ? "–" : formatRatio(lane.order)]);
  return html`<section aria-labelledby="moved"><h2 id="moved">How far messages moved</h2>
    <p>${formatCount(sum)} places in all${delivered ? `, ${mean(sum / delivered)} on average over ${plural(delivered, "message")}` : ""}; ${plural(pairs, "pair")} swapped.</p>
    <ul class="bars">${lanes.slice(0, MOST_BARS).map((lane) => html`<li class="bar"><span class="name">${lane.name}</span>
      <svg viewBox="0 0 1000 12" preserveAspectRatio="none" role="img" aria-label=${`${lane.name}: ${mean(lane.mean)} places on average`}><rect class="behind" width=${Math.max(4, (1000 * (lane.mean ?? 0)) / most)} height="12" /></svg>
      <span class="text">${mean(lane.mean)} places on average, ${formatCount(lane.sum)} in all; ${formatCount(lane.reordered)} reordered</span></li>`)}</ul>
    ${lanes.length > MOST_BARS ? html`<p class="quiet">The ${MOST_BARS} lanes that moved most; the table has all ${formatCount(lanes.length)}.</p>` : null}
    ${lanes.length ? html`<${DataTable} caption="how far messages moved" columns=${["lane", "reordered", "places in all", "on average", "pairs swapped", "order"]} rows=${rows} />` : null}</section>`;
}

// player.js
// The controls of a replay: play, pause, speed, and a slider over the run.


const STEP_MS = 100;

// Where a replay stands, in seconds from the start; null for the end. `chosen` is what the address
// says, `keep(at)` writes it there: when it pauses, not at each step.
function useReplay(chosen, length, keep) {
  const [state, setState] = useState({ at: null, isPlaying: false, speed: 1 });
  const { isPlaying, speed } = state;
  const at = state.at ?? chosen;
  useEffect(() => {
    if (!isPlaying) return undefined;
    let before = performance.now();
    const timer = setInterval(() => {
      const now = performance.now();
      const elapsedS = (now - before) / 1000;
      before = now;
      setState((old) => ({ ...old, at: advance(old.at ?? 0, elapsedS, old.speed, length) }));
    }, STEP_MS);
    return () => clearInterval(timer);
  }, [isPlaying, length]);
  const seek = (next) => { setState({ ...state, at: null, isPlaying: false }); keep(next === null || next >= length ? null : next); };
  useEffect(() => { if (isPlaying && at >= length) seek(null); }, [isPlaying, at >= length]);
  return {
    at, isPlaying, speed, length, seek,
    drag: (next) => setState({ ...state, at: next, isPlaying: false }),
    toggle: () => (isPlaying ? seek(at) : setState({ ...state, at: at ?? 0, isPlaying: true })),
    setSpeed: (next) => setState({ ...state, speed: next }),
  };
}

function Player({ replay, log }) {
  const { at, isPlaying, speed, length } = replay;
  const value = at ?? length;
  return html`<div class="player" role="group" aria-label="Replay">
    <button type="button" onClick=${replay.toggle}>${isPlaying ? "Pause" : at === null ? "Replay" : "Play"}</button>
    <label>Speed <select value=${speed} onChange=${(event) => replay.setSpeed(Number(event.target.value))}>${SPEEDS.map((each) => html`<option value=${each} selected=${each === speed}>${each}×</option>`)}</select></label>
    <label class="moment">Moment <input type="range" min="0" max=${length.toFixed(1)} step="0.1" value=${value.toFixed(1)} aria-valuetext=${`${value.toFixed(1)} s of ${length.toFixed(1)} s`}
      onInput=${(event) => replay.drag(Number(event.target.value))} onChange=${(event) => replay.seek(Number(event.target.value))} /></label>
    <span class="quiet at">${value.toFixed(1)} s of ${length.toFixed(1)} s</span>
    ${at === null ? null : html`<button type="button" onClick=${() => replay.seek(null)}>Show the end</button>
      <p class="sentence">${describeThing({ subject: "run" }, log)}</p>`}
  </div>`;
}

// run.js
// One run: its verdict, the flow of its messages, its tracks over time, findings and environment.


const PARTS = ["", "/source", "/target", "/mirror"];

function Run({ address }) {
  const state = useRun(address.name);
  const { run, page, logs, problem, isConnected } = state;
  const mayAct = useActions();
  if (!run) return html`<main><${WayBack} name=${address.name} /><h1>${address.name}</h1>${problem ? html`<${Problem} text=${problem} />` : html`<p class="quiet">Loading…</p>`}</main>`;
  return html`<main>
    <${WayBack} name=${address.name} />
    <h1>${run.summary.run}</h1>
    ${problem ? html`<${Problem} text=${`${problem}: what you see is old`} />` : null}
    ${isConnected === false ? html`<${Problem} text="Disconnected: shoal serve does not answer. What you see is old; this page tries again." />` : null}
    <${PartLinks} name=${address.name} logs=${logs} />
    ${mayAct && run.summary.state === "running" ? html`<p class="actions"><${ActionButton} body=${{ thing: `run:${address.name}`, action: "stop" }} label="Stop" title="stop this run: it drains and is judged" done="It drains and is judged." /></p>` : null}
    <${RunBody} run=${run} page=${page} logs=${logs} address=${address} link=${(witness) => lifeLink(witness, address.name)} />
  </main>`;
}

// The pages of its clusters and of its mirror, if those wrote events.
function PartLinks({ name, logs }) {
  const parts = [["source", "cluster"], ["target", "cluster"], ["mirror", "mirror"]].filter(([part]) => logs[part] && logs[part].meta);
  return parts.length ? html`<p class="quiet">More about its ${parts.map(([part, place], at) => html`${at ? ", " : ""}<a href=${buildAddress(place, `${name}/${part}`)}>${part}</a>`)}.</p>` : null;
}

// Everything about a run, from its data; the page and the report show the same. `link` returns where
// a witness leads.
function RunBody({ run, page, logs, address, link }) {
  const isRunning = run.summary.state === "running";
  const set = (changes) => replaceQuery(address, changes);
  const { result } = run;
  const log = logs.run || emptyLog();
  const group = result ? chooseOne(address.query.group, Object.keys(result.groups), { what: "consumer group", fallback: `${result.worst_group} is shown`, otherwise: result.worst_group }) : { value: "", notes: [] };
  const judged = result && result.groups[group.value];
  const drawn = page && (group.value ? (Object.hasOwn(page.groups, group.value) ? page.groups[group.value] : null) : Object.values(page.groups)[0]);
  const bins = drawn ? binsOfPage(drawn.bins) : binsOfTicks(log.ticks);
  const [start, end] = wholeRange(bins, logs);
  const times = chooseTime(address.query, end - start);
  const canReplay = !isRunning && log.ticks.length > 1;
  const moment = chooseMoment(canReplay ? address.query.at : "", end - start);
  const replay = useReplay(moment.at, end - start, (at) => set({ at: at === null ? "" : at.toFixed(2) }));
  const past = replay.at === null ? log : cutLog(log, start + replay.at);
  const flow = drawn ? drawn.flow.stages.map((stage) => ({ stage: stage.name, count: stage.count, lost: stage.lost, copies: stage.duplicated })) : flowOfRun(run, log);
  const stages = replay.at === null ? flow : flowOfLog(past);
  const stage = chooseOne(address.query.stage, flow.map((each) => each.stage), { what: "stage", fallback: "all stages are shown" });
  return html`
    <${Head} run=${run} log=${log} isRunning=${isRunning} />
    <${Notes} notes=${[...group.notes, ...stage.notes, ...times.notes, ...moment.notes]} />
    ${judged ? html`<${Tiles} group=${judged} acks=${run.manifest.acks} /><${Thresholds} thresholds=${result.thresholds} />
      <${Groups} result=${result} chosen=${group.value} onChoose=${(name) => set({ group: name })} />` : null}
    ${stages.length ? html`<${FlowDiagram} stages=${stages} chosen=${stage.value} onChoose=${(name) => set({ stage: name })} note=${isRunning ? ", so far" : replay.at === null ? "" : `, ${replay.at.toFixed(1)} s after the start`} />` : null}
    ${stage.value ? html`<${FilterNote} stage=${stage.value} onClear=${() => set({ stage: "" })} />` : null}
    ${judged ? html`<${Stages} group=${judged} mirror=${result.mirror} stage=${stage.value} /><${Findings} group=${judged} stage=${stage.value} link=${link} />` : html`<${FindingsSoFar} log=${past} isRunning=${isRunning} stage=${stage.value} />`}
    ${judged && page && !drawn ? html`<p class="quiet">The data behind the charts of group ${group.value} was left out, because it would be too large.</p>` : null}
    <${Tracks} bins=${bins} lanes=${drawn ? drawn.lanes : []} laneStart=${drawn ? drawn.bins.start_us / 1e6 : 0} logs=${logs} resultFaults=${result && result.faults} windows=${judged && judged.windows} thresholds=${result && result.thresholds}
      times=${times} stage=${stage.value} moment=${replay.at === null ? null : start + replay.at} onZoom=${({ from, to }) => set({ from, to })} isSoFar=${isRunning}>
      ${canReplay ? html`<${Player} replay=${replay} log=${past} />` : null}</${Tracks}>
    ${judged && (!stage.value || stage.value === "received") ? html`<${Displacement} group=${judged} />` : null}
    ${judged ? html`<${FaultTable} result=${result} group=${judged} stage=${stage.value} />` : null}
    <${Curves} curves=${drawn ? drawn.curves : curveOfBins(bins, isRunning ? "so far" : "whole")} />
    ${judged ? html`<${Metrics} group=${judged} /><${Latencies} group=${judged} /><${Throughput} group=${judged} />` : null}
    <${Environment} manifest=${run.manifest} />`;
}

function FilterNote({ stage, onClear }) {
  return html`<p class="note" role="status">Only what belongs to <b>${STAGE_NAMES[stage]}</b> is shown of: verdicts by stage, findings, faults, messages per second, lanes, brokers and processes. Latencies and metrics are of all messages.
    <button type="button" onClick=${onClear}>Show all stages</button></p>`;
}

function lifeLink({ topic, producer, lane, sequence }, name) {
  return html`<a href=${buildAddress("life", name, { topic, producer, lane, sequence })}>Follow this message</a>`;
}

// Loads a run and its events; follows them while it runs, and loads it again when it is judged.
function useRun(name) {
  const [state, setState] = useState({ run: null, page: null, logs: {}, problem: "", isConnected: null });
  const [round, setRound] = useState(0);
  useEffect(() => {
    let isGone = false;
    let close = () => null;
    const merge = (id, events, isStart) => setState((old) => {
      const part = partOf(id);
      return { ...old, logs: { ...old.logs, [part]: addEvents(old.logs[part] || emptyLog(), events, isStart) } };
    });
    load(name, merge).then(({ run, page, positions }) => {
      if (isGone) return;
      setState((old) => ({ ...old, run, page, problem: "" }));
      if (run.summary.state !== "running") return;
      close = openStream({
        positions,
        onState: (isConnected) => setState((old) => ({ ...old, isConnected })),
        onMessage: (kind, content) => {
          if (kind === "events") merge(content.thing, content.events, content.is_start);
          else if (!content.things.some((thing) => thing.id === `run:${name}`)) { close(); setRound((old) => old + 1); }
        },
      });
      if (isGone) close();
    }, (error) => setState((old) => ({ ...old, problem: error.message })));
    return () => { isGone = true; close(); };
  }, [name, round]);
  return state;
}

async function load(name, merge) {
  const run = await getJson(`runs/${encodeURIComponent(name)}`);
  const stored = run.result ? await getJson(`runs/${encodeURIComponent(name)}/page`).catch(() => null) : null;
  const page = stored && stored.groups ? stored : null;
  const positions = {};
  for (const part of PARTS) {
    const id = `run:${name}${part}`;
    let position = "";
    for (;;) {
      const chunk = await getJson(`events?thing=${encodeURIComponent(id)}&position=${position}`);
      if (chunk.position === null) break;
      if (chunk.events.length || chunk.is_start) merge(id, chunk.events, chunk.is_start);
      position = chunk.position;
      positions[id] = position;
      if (!chunk.has_more) break;
    }
    if (!(id in positions)) positions[id] = "";
  }
  return { run, page, positions };
}

function Head({ run, log, isRunning }) {
  const { summary } = run;
  if (isRunning) return html`<p class="sentence big"><span class="verdict none">running</span> ${countSoFar(log)}</p>`;
  return html`<p class="sentence big"><${Verdict} word=${summary.verdict} /> ${summary.sentence || `Not judged: ${summary.state}. Judge it with shoal audit.`}</p>`;
}

function countSoFar(log) {
  const tick = log && log.ticks[log.ticks.length - 1];
  if (!tick) return "No counts yet.";
  const names = ["sent", "acknowledged", "received"].filter((name) => tick.counters[name] !== undefined);
  return `So far ${names.map((name) => `${formatCount(tick.counters[name])} ${name}`).join(", ")}.`;
}

function flowOfRun(run, log) {
  return run.summary.numbers ? run.summary.numbers.flow : flowOfLog(log);
}

function Findings({ group, stage, link }) {
  const all = Object.entries(group.findings);
  const shown = all.filter(([finding]) => isFindingOf(stage, finding));
  return html`<section aria-labelledby="findings"><h2 id="findings">Findings${stage ? ` at: ${stage}` : ""}</h2>
    ${all.length ? null : html`<p>None.</p>`}
    ${all.length && !shown.length ? html`<p class="quiet">None of the ${plural(all.length, "finding")} belongs to this stage.</p>` : null}
    <ul class="findings">${shown.map(([finding, found]) => html`<li><b>${finding}</b>: ${formatCount(found.count)} in ${plural(found.streams, "stream")}
      ${found.witness ? html`<${Witness} witness=${found.witness} link=${link} />` : null}</li>`)}</ul></section>`;
}

function Witness({ witness, link }) {
  const hasName = ["topic", "producer", "lane", "sequence"].every((key) => witness[key] !== undefined);
  return html`<div class="witness">for example ${Object.entries(witness).map(([key, value]) => html`<span>${key.replace(/_us$/, "")} <code>${describeValue(value, key)}</code></span> `)}${hasName ? link(witness) : null}</div>`;
}

function FindingsSoFar({ log, isRunning, stage }) {
  const found = Object.values(log.findings).filter((each) => isFindingOf(stage, each.finding));
  return html`<section aria-labelledby="findings"><h2 id="findings">${isRunning ? "Findings so far" : "Findings while it ran"}</h2>
    ${found.length ? html`<ul class="findings">${found.map((each) => html`<li><b>${each.finding}</b>: ${formatCount(each.count)}${isRunning ? " so far" : ""}${each.is_certain ? "" : ", not certain yet"}</li>`)}</ul>` : html`<p>None.</p>`}</section>`;
}

function Curves({ curves }) {
  if (!curves.length) return null;
  const rows = curves.flatMap((curve) => curve.points.map(([percent, value]) => [curve.phase, `p${percent}`, value === null ? "never" : formatUs(value)]));
  return html`<section aria-labelledby="curves"><h2 id="curves">Latency by percentile</h2><${PercentileCurves} curves=${curves} />
    <${DataTable} caption="latency by percentile" columns=${["phase", "percentile", "latency"]} rows=${rows} /></section>`;
}

const SETTING_NAMES = { faults: "planned faults", started_us: "started (UTC)", measure_from_us: "measured from (UTC)", master: "Spark master" };

function Environment({ manifest }) {
  const rows = Object.entries(manifest).filter(([name, value]) => !["state", "run", "format", "driver"].includes(name) && value !== null);
  const show = (name, value) => {
    if (name === "started_us" || name === "measure_from_us") return formatTime(value);
    if (name === "warm_up_us") return formatUs(value);
    if (name === "acks") return String(value) === "-1" ? "all" : value;
    if (name === "command" && Array.isArray(value)) return value.join(" ");
    return describeValue(value, name);
  };
  return html`<section aria-labelledby="environment"><h2 id="environment">Environment</h2><div class="scroll" tabindex="0" role="region" aria-label="table: environment"><table class="facts">
    <tbody>${rows.map(([name, value]) => html`<tr><th scope="row">${SETTING_NAMES[name] || name.replace(/_us$/, "").replaceAll("_", " ")}</th><td>${show(name, value)}</td></tr>`)}</tbody></table></div></section>`;
}

// report.js
// A report: one file that shows the data which is written into it, without any server.


const KINDS = { run: RunReport, comparison: ComparisonReport, sweep: SweepReport };

// The data of this file; null in the page of shoal serve.
function readReport() {
  const found = document.getElementById("report");
  return found ? JSON.parse(found.textContent) : null;
}

function Report({ content }) {
  const [address, setAddress] = useState(parseAddress(location.hash));
  useEffect(() => {
    const follow = () => setAddress(parseAddress(location.hash));
    window.addEventListener("hashchange", follow);
    return () => window.removeEventListener("hashchange", follow);
  }, []);
  const Kind = KINDS[content.kind];
  return html`<main><${Kind} content=${content} address=${address} /></main>`;
}

function RunReport({ content, address }) {
  const { result, manifest, page } = content;
  const logs = Object.fromEntries(Object.entries(content.events).map(([part, events]) => [part, addEvents(emptyLog(), events, true)]));
  const run = { summary: { run: result.run, state: "finished", verdict: result.verdict, sentence: result.sentence }, manifest, result };
  const command = (manifest.command || []).join(" ");
  return html`<h1>${result.run}</h1>
    <p class="quiet">${manifest.started_us ? `Started ${formatTime(manifest.started_us)} UTC.` : null}</p>
    <${RunBody} run=${run} page=${page} logs=${logs} address=${address} link=${(witness) => lifeCommand(witness, result.run)} />
    <section aria-labelledby="again"><h2 id="again">Run it again</h2>
      ${command ? html`<p><code>${command}</code></p>` : null}
      <p>Judge the same ledgers again, without any Kafka: <code>shoal audit ${result.run}</code></p></section>`;
}

// A report has no ledgers, so it names the command that reads them.
function lifeCommand({ topic, producer, lane, sequence }, run) {
  return html`<p>Its life: <code>shoal runs message ${[run, topic, producer, lane, sequence].map(quoteWord).join(" ")}</code></p>`;
}

function quoteWord(word) {
  const text = String(word);
  return /^[\w./:@-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

// sweep.js
// One sweep: the effects of its settings, once they are known, and all of its runs.


const SWEEP_EVERY_MS = 3000;

function Sweep({ address }) {
  const { found, problem } = useSweep(address.name);
  if (!found) return html`<main><p><a href="#/">All runs</a></p><h1>${address.name}</h1>${problem ? html`<${Problem} text=${problem} />` : html`<p class="quiet">Loading…</p>`}</main>`;
  const { summary, runs, result } = found;
  const links = Object.fromEntries(runs.map((run) => [run.run, buildAddress("run", run.name)]));
  return html`<main>
    <p><a href="#/">All runs</a></p>
    ${result ? html`<${SweepReport} content=${{ ...result, links }} />` : html`<h1>Sweep of ${summary.experiment}</h1>
      <p class="sentence big">${describeSweep(summary)}</p>
      <p class="quiet">The effects of the settings are known when <code>shoal sweep</code> ends.</p>`}
    ${problem ? html`<${Problem} text=${problem} />` : null}
    <section aria-labelledby="verdicts"><h2 id="verdicts">Runs of this sweep</h2>
      <${Verdicts} list=${{ runs, total: runs.length }} address=${address} /></section>
  </main>`;
}

// Asks again while runs of the sweep go on and the page is visible.
function useSweep(name) {
  const [state, setState] = useState({ found: null, problem: "" });
  useEffect(() => {
    let timer = null;
    let isGone = false;
    const ask = async () => {
      const found = document.hidden ? undefined : await getJson(`sweeps/${encodeURIComponent(name)}`).catch((error) => { setState((old) => ({ ...old, problem: error.message })); return null; });
      if (isGone) return;
      if (found) setState({ found, problem: "" });
      if (found === undefined || (found && found.summary.state === "running")) timer = setTimeout(ask, SWEEP_EVERY_MS);
    };
    ask();
    return () => { isGone = true; clearTimeout(timer); };
  }, [name]);
  return state;
}

// app.js
// The page: chooses a place by the address. In a report, which has its data in it, shows that.


const PLACES = { home: Home, cluster: Cluster, compare: Compare, demo: Demo, life: Life, mirror: Mirror, run: Run, stories: Stories, sweep: Sweep };

function App() {
  const [address, setAddress] = useState(parseAddress(location.hash));
  useEffect(() => {
    const follow = () => setAddress(parseAddress(location.hash));
    window.addEventListener("hashchange", follow);
    return () => window.removeEventListener("hashchange", follow);
  }, []);
  const Place = Object.hasOwn(PLACES, address.place) ? PLACES[address.place] : null;
  useEffect(() => { document.title = address.name ? `${address.name} – Shoal` : "Shoal"; }, [address.place, address.name]);
  return Place ? html`<${Guarded} key=${address.place + address.name} name=${address.name}><${Place} address=${address} /><//>` : html`<main><h1>No such page</h1><p><a href="#/">All runs</a></p></main>`;
}

const report = readReport();
render(report ? html`<${Guarded}><${Report} content=${report} /><//>` : html`<${App} />`, document.getElementById("app"));
