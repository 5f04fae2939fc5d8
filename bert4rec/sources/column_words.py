"""The words in names of columns, in thirteen languages and some programs, and how a name is split."""

import re
import unicodedata
from functools import lru_cache

FOLDED = str.maketrans({"ß": "ss", "ł": "l", "Ł": "L", "ø": "o", "Ø": "O", "ı": "i", "æ": "ae", "Æ": "AE", "œ": "oe"})
FAMOUS = {  # whole names in public data sets and programs
    "uid": "user id", "iid": "item id", "aid": "article id", "mid": "movie id", "pno": "product no",
    "kunnr": "customer no", "kdnr": "customer no", "custid": "customer id", "custno": "customer no", "msno": "user id",
    "steamid": "user id", "visid": "visitor id", "distinctid": "user id", "matnr": "product no", "artnr": "article no",
    "stockcode": "product code", "appid": "app id", "traid": "track id", "traname": "track name", "artid": "artist id",
    "artname": "artist name", "erdat": "created date", "budat": "posted date", "fkdat": "ordered date",
    "bldat": "ordered date", "audat": "ordered date",
}  # fmt: skip
AT_EDGES = {"id", "no", "nr", "kd", "at", "dt", "ts", "ad", "cd"}  # short words that begin or end a longer one
NAME_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")


def _words(text: str) -> set[str]:
    return {*text.split()}


IDENTIFIER_WORDS = _words("""
    n cod cve uri md barcode 編號 編碼 號碼 代碼 代码 品番 id uid uuid guid code cd number key hash pseudo ref slug
    handle no nr num nbr msid mbid token unique nummer schluessel schlussel kennung numero cle codigo clave codice
    numer kod kodu numara numarasi номер код ид 编号 编码 号 番号 コード 번호 코드 아이디
""")
NAME_WORDS = _words("""
    nombres name title naam nom titre nombre titulo nome titolo nazwa tytul ad adi isim baslik titel bezeichnung
    beschreibung description desc descripcion descrizione descricao opis aciklama omschrijving libelle label caption
    denominacion designation название имя наименование описание 名称 标题 名 名前 タイトル 이름 명 제목 상품명
""")
USER_WORDS = _words("""
    actor taster critic user username usr customer cust member visitor client person reader viewer buyer shopper
    reviewer listener player subscriber consumer patient candidate student learner pupil passenger guest rater voter
    profile borrower donor patron rider lender applicant jobseeker follower fan gamer consumidor kunde kunden kd nutzer
    benutzer besucher kaufer kaeufer mitglied teilnehmer leser utilisateur acheteur membre abonne visiteur cliente
    usuario comprador miembro socio suscriptor visitante utente acquirente membro abbonato iscritto utilizador
    assinante klant gebruiker koper lid bezoeker klient klienta uzytkownik uzytkownika kupujacy nabywca musteri
    kullanici uye alici abone клиент клиента покупатель покупателя пользователь пользователя юзер абонент подписчик
    用户 客户 顾客 会员 买家 使用者 用戶 客戶 顧客 會員 ユーザー ユーザ 会員 客 購入者 회원 사용자 고객 이용자 유저
    구매자 kund bruger bruker anvandare zakaznik uzivatel asiakas
""")
SESSION_WORDS = _words("""
    playlist session visit sitzung sesion sessione sessao sessie sesja oturum сессия 会话 セッション 세션
""")
OTHER_USER_WORDS = _words("""
    account household card device cookie partner anonymous subscription contact employee machine installation konto
    haushalt karte gerat geraet compte foyer carte cuenta hogar tarjeta conta cartao conto tessera kart hesap карта
    аккаунт счет 账号 账户 设备 卡 カード 카드 loyalty debitor geschaftspartner geschaeftspartner msisdn imei
""")  # taken if no column names users
ITEM_WORDS = _words("""
    item sku product prod movie film book article art isbn asin song track artist video game offer anime recipe goods
    show episode podcast course hotel restaurant job listing story news recording joke beer wine drug medicine dish
    material program programme vacancy album lesson exercise tvshow series manga comic paper document lecture
    merchandise meal apartment accommodation lineitem artikel produkt ware warengut buch lied spiel stuck sendung
    produit livre chanson jeu producto articulo libro cancion pelicula juego prodotto articolo canzone produto artigo
    livro musica jogo boek liedje spel towar produktu artykul ksiazka utwor urun urunu kitap sarki товар товара продукт
    продукта артикул книга фильм песня трек номенклатура 商品 产品 物品 货品 電影 电影 歌曲 书籍 產品 品目 製品
    アイテム 作品 상품 제품 아이템 품목 vare vara tuote zbozi vyrobek upc ean gtin plu
""")
CODE_WORDS = _words("""
    sku upc ean gtin plu isbn asin isrc msisdn imei
""")  # words that are ids without a second word
BARCODE_WORDS = _words("upc ean gtin plu isbn isrc")  # second names of what another column has the ids of
OTHER_ITEM_WORDS = _words("""
    element object page url screen post content place venue business location ad app poi reference link seite pagina
    страница 页面 ページ creative asset clip channel station pid vid nid
""")  # taken if no column names items
TIME_WORDS = _words("""
    time timestamp date datetime ts at when day moment instant epoch unixtime tstamp dt dat stamp tms timeframe dttm
    utc zeit datum zeitpunkt zeitstempel uhrzeit tag heure horodatage jour fecha hora dia momento data ora giorno tijd
    tijdstip dag czas dzien godzina tarih tarihi zaman saat gun дата время день момент датавремя 时间 日期 时刻 時間
    時刻 日時 日付 日 일시 날짜 시간 일자 시각 tid dato pvm
""")
RATING_WORDS = _words("""
    rating star score overall grade bewertung sterne note evaluation valoracion puntuacion calificacion voto
    valutazione avaliacao beoordeling waardering ocena puan оценка рейтинг 评分 评级 評分 評価 평점 별점
""")
START_WORDS = _words("""
    event timestamp created create time ordered order purchased purchase viewed view start started begin click clicked
    listened played bought applied watched rated visited transaction original
""")  # of several times, those of the event itself
END_WORDS = _words("""
    end ended finish finished stop stopped closed completed paid shipped delivered delivery sent received arrival
    collector derived server due cancelled refunded returned processed approved estimated shipping logout seen login
    carrier limit lieferdatum zahlungsdatum refund packed fulfilled fulfillment posted posting valued value valuta
    wertstellung prev previous last offline payment dispatched dispatch dropoff canceled expected
""")  # of several times, the later ones
CHANGE_WORDS = _words("""
    load loaded insert inserted update updated modified modify modification edit edited changed change sync synced
    synchronized export exported import imported etl ingest ingested ingestion write written extract extracted snapshot
    birth birthday dob born release released publish published expiry expire expires expiration valid until since
    registered registration signup joined membership deleted archived aedat laeda geburtsdatum geburt geandert
    geaendert aktualisiert naissance nacimiento nascita nascimento geboorte urodzenia dogum рождения 出生 生年月日
    생년월일 更新 更新日 修改 수정
""")  # times of a load, an edit, a person or an item, not of an event
DURATION_WORDS = _words("""
    duration dur length elapsed spent dwell play played playing watch watching watched listen listening view viewing
    session reading read times count response latency wait waiting processing runtime total avg average remaining
    remain active idle loading lead cook cooking prep preparation travel screen per forever dauer duree duracion durata
    duracao duur sure длительность 时长 再生時間
""")  # with a word of time: how long, or how often
NEUTRAL_WORDS = _words("""
    review log acct path line event my the of by anonymous external internal domain action click clicked view viewed
    source original global web shop sold legacy old new main primary raw crm erp int str bk sk pk master unified
    encoded enc de du la le di do da del der des van nr
""")  # words beside which an id stays the same id
OTHER_WORDS = _words("""
    point second minute hour percent pct ratio rate probability flag is has beleg order invoice basket cart transaction
    receipt ticket message review category cat class subclass subcategory group type brand price amount qty quantity
    country city region state zip pin age gender sex store shop seller vendor supplier merchant agent count size color
    colour status version platform browser os language lang currency segment tier level score rank position index row
    campaign image stock referrer parent related next previous target genre tag department dept section aisle warehouse
    session visit text comment feedback query keyword weight discount revenue value cost total margin tax feature
    author publisher maker manufacturer label family time date year month week latitude longitude lat lon lng host port
    useful funny cool environment bestellung auftrag rechnung beleg menge preis betrag gruppe kategorie land stadt
    marke commande facture panier prix quantite categorie ville pays marque pedido factura precio cantidad categoria
    ciudad pais marca ordine fattura prezzo importo quantita citta zamowienie cena ilosc kategoria siparis fiyat adet
    miktar kategori заказ чек цена количество категория город бренд 订单 价格 数量 类别 金额 品牌 注文 カテゴリ 価格
    주문 가격 수량 카테고리 bestelling prijs aantal kauf kaufdatum compra achat acquisto zakup zakupu zakupow bestel
    aankoop покупка покупки заказа 购买 購入 구매 下单 注册
""")  # things beside users, items and times
WORDS = {
    "user": USER_WORDS | OTHER_USER_WORDS | SESSION_WORDS, "item": ITEM_WORDS | OTHER_ITEM_WORDS, "time": TIME_WORDS,
    "rating": RATING_WORDS,
}  # fmt: skip
ROLES = {word for words in WORDS.values() for word in words}
KNOWN = ROLES.union(
    IDENTIFIER_WORDS, NAME_WORDS, START_WORDS, END_WORDS, CHANGE_WORDS, DURATION_WORDS, NEUTRAL_WORDS, OTHER_WORDS,
    ("mail", "email", "phone"),
)  # fmt: skip


@lru_cache(1 << 12)
def ordered_words(name: str) -> tuple[str, ...]:
    """Return the words in a column's name in their order: lower case, without accents, in the singular.

    Of a path, such as `review/profileName`, these are the words of the last part that says more than "id".

    >>> ordered_words("KundenNr"), ordered_words("idvisitor"), ordered_words("beer/beerId"), ordered_words("会員番号")
    (('kunden', 'nr'), ('id', 'visitor'), ('beer', 'id'), ('会員', '番号'))
    """
    plain = unicodedata.normalize("NFKC", name).translate(FOLDED)
    plain = "".join(_without_accent(letter) for letter in plain)
    parts = [
        [part for word in NAME_PART.findall(text) for part in _parts(word.lower())] for text in re.split(r"[/.]", plain)
    ]
    parts = [part for part in parts if part] or [[]]
    last = parts.pop()
    while parts and set(last) <= IDENTIFIER_WORDS | NAME_WORDS:
        last = parts.pop() + last
    famous = FAMOUS.get("".join(last))
    return tuple(famous.split() if famous else last)


def name_words(name: str) -> set[str]:
    """Return the words in a column's name.

    >>> sorted(name_words("customerIds")), sorted(name_words("movieid")), sorted(name_words("created_at"))
    (['customer', 'id'], ['id', 'movie'], ['at', 'created'])
    """
    return {*ordered_words(name)}


def are_columns_swapped(user_column: str, item_column: str) -> bool:
    """Return whether the user column has a name for items, or the item column a name for users.

    >>> are_columns_swapped("sku", "customer"), are_columns_swapped("customer", "sku")
    (True, False)
    >>> are_columns_swapped("user", "followed_user")
    False
    """
    user, item = name_words(user_column), name_words(item_column)
    users, items = WORDS["user"], WORDS["item"]
    return bool(user & items or item & users) and not user & users and not item & items


def _without_accent(letter: str) -> str:
    base = unicodedata.normalize("NFD", letter)[0]
    return base if base.isascii() else letter


def _parts(word: str) -> tuple[str, ...]:
    """Return the known words that `word` is made of; the word itself, in the singular, if that is not so."""
    if word in KNOWN:
        return (word,)
    single = word.removesuffix("s") if len(word) > 2 else word
    if single in KNOWN:
        return (single,)
    return _split(word) or _split(single) or (single,)


def _split(word: str) -> tuple[str, ...]:
    """Return the fewest known words, one of them of a field, that together are `word`; none if there are none."""
    best: list[tuple[str, ...] | None] = [(), *[None] * len(word)]
    for end in range(1, len(word) + 1):
        for start in range(end):
            before, part = best[start], word[start:end]
            is_short = part.isascii() and len(part) < 3
            is_at_edge = part in AT_EDGES and len(word) >= 5 and (start == 0 or end == len(word))
            if before is not None and part in KNOWN and (not is_short or is_at_edge):
                now = best[end]
                if now is None or len(before) + 1 < len(now):
                    best[end] = (*before, part)
    found = best[-1] or ()
    return found if set(found) & (ROLES | IDENTIFIER_WORDS) else ()
